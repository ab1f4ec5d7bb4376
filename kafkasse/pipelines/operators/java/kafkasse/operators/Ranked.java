package kafkasse.operators;

import java.util.ArrayList;
import java.util.Collections;
import java.util.Comparator;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.spark.sql.Encoders;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.RowFactory;
import org.apache.spark.sql.streaming.MapState;
import org.apache.spark.sql.streaming.OutputMode;
import org.apache.spark.sql.streaming.QueryInfo;
import org.apache.spark.sql.streaming.StatefulProcessor;
import org.apache.spark.sql.streaming.TTLConfig;
import org.apache.spark.sql.streaming.TimeMode;
import org.apache.spark.sql.streaming.TimerValues;
import org.apache.spark.sql.streaming.ValueState;
import org.apache.spark.sql.types.StructType;
import scala.Tuple2;
import scala.collection.Iterator;
import scala.jdk.javaapi.CollectionConverters;

/**
 * Keeps the members of each group in rank order. Emits the top n each time that they change, and after a restart, see repeats().
 *
 * <p>Input: key, sequence, step, position, group, old_rank, rank, item. Output: group, items, version, position. See
 * ranked.py and schemas.py.
 */
public final class Ranked extends StatefulProcessor<String, Row, Row> {
    private static final int KEY = 0, SEQUENCE = 1, STEP = 2, POSITION = 3, OLD_RANK = 5, RANK = 6, ITEM = 7;
    /** The first batch of each run in this JVM. */
    private static final Map<UUID, Long> FIRST_BATCHES = new ConcurrentHashMap<>();
    /** Members beyond the top n that are kept at hand. */
    private static final int SPARE_CANDIDATES = 16;

    private final int n, repeatingBatches;
    private final StructType orderKeySchema, memberSchema, groupSchema;
    private transient MapState<Row, Row> members;
    private transient ValueState<Row> group;
    private transient Boolean resumed;

    /**
     * @param n the number of items in a result
     * @param repeatingBatches the batches after a restart in which a result is repeated if only its version has changed
     * @param orderKeySchema the keys of the members in the state
     * @param memberSchema the members in the state
     * @param groupSchema the rest of the state of a group
     */
    public Ranked(int n, int repeatingBatches, StructType orderKeySchema, StructType memberSchema, StructType groupSchema) {
        this.n = n;
        this.repeatingBatches = repeatingBatches;
        this.orderKeySchema = orderKeySchema;
        this.memberSchema = memberSchema;
        this.groupSchema = groupSchema;
    }

    @Override
    public void init(OutputMode outputMode, TimeMode timeMode) {
        members = getHandle()
                .getMapState("members", Encoders.row(orderKeySchema), Encoders.row(memberSchema), TTLConfig.NONE());
        group = getHandle().getValueState("group", Encoders.row(groupSchema), TTLConfig.NONE());
    }

    @Override
    public Iterator<Row> handleInputRows(String name, Iterator<Row> moves, TimerValues timers) {
        boolean repeats = repeats(); // also in the first batch, which the call remembers
        Row stored = group.get();
        long size = stored == null ? 0 : stored.getLong(0);
        long version = stored == null ? 0 : stored.getLong(1);
        Position position = stored == null ? Position.empty() : Position.ofStored(stored.getList(2));
        List<Member> candidates = stored == null ? new ArrayList<>() : candidates(stored.getList(3));
        List<Member> top = List.copyOf(top(candidates));
        for (Row move : sorted(moves)) {
            version += move.getLong(STEP);
            position.merge(Position.of(move.getMap(POSITION)));
            if (!move.isNullAt(OLD_RANK) && remove(candidates, move.getString(KEY), move.getLong(OLD_RANK))) size--;
            if (!move.isNullAt(RANK)) {
                add(candidates, size, new Member(move.getString(KEY), move.getLong(RANK), move.getString(ITEM)));
                size++;
            }
            if (candidates.size() < Math.min(n, size)) candidates = firstMembers();
        }
        Object[] rows = candidates.stream().map(Member::stored).toArray();
        group.update(RowFactory.create(size, version, position.stored(), rows));
        if (top(candidates).equals(top) && !(stored != null && repeats)) return CollectionConverters.asScala(Collections.<Row>emptyIterator());
        Object[] items = top(candidates).stream().map(Member::item).toArray();
        Row result = RowFactory.create(name, items, version, position.offsets());
        return CollectionConverters.asScala(Collections.singletonList(result).iterator());
    }

    /**
     * Whether the query has just resumed from its checkpoint in real-time mode. It then reads the records since the last commit
     * again, perhaps with the partitions in another order.
     *
     * <p>Why results must be repeated: before the restart, the query read x and nine smaller members from partition 0, and
     * emitted the top 1 "x" with version 55. After the restart, it reads y, which is larger than x, from partition 1 first. It
     * emits "y" with version 1, which the pipeline and its clients drop as outdated. Partition 0 does not change the top 1, so
     * without a repetition they would keep "x". When "y" is repeated after the last of the ten records, its version is 56.
     *
     * <p>Why three batches: the run before has read at most the records of one batch after its last commit, and the first batch
     * of this run starts with them. The others are for a run that is slower, for example while the JVM warms up. The cost is one
     * row for each change of a group during half a minute; older repetitions are dropped before they are written.
     *
     * <p>Micro-batches need no repetition: Spark stores the offsets of a batch before it runs, and repeats exactly this batch.
     */
    private boolean repeats() {
        if (resumed == null) {
            QueryInfo query = getHandle().getQueryInfo();
            long first = FIRST_BATCHES.computeIfAbsent(query.getRunId(), run -> query.getBatchId());
            resumed = first > 0 && query.getBatchId() < first + repeatingBatches;
        }
        return resumed;
    }

    private static List<Row> sorted(Iterator<Row> moves) {
        List<Row> sorted = new ArrayList<>();
        while (moves.hasNext()) sorted.add(moves.next());
        if (sorted.size() > 1) sorted.sort(Comparator.comparingLong(move -> move.getLong(SEQUENCE)));
        return sorted;
    }

    private static List<Member> candidates(List<Row> stored) {
        List<Member> candidates = new ArrayList<>();
        for (Row each : stored) candidates.add(Member.of(each));
        return candidates;
    }

    private List<Member> top(List<Member> candidates) {
        return candidates.subList(0, Math.min(n, candidates.size()));
    }

    /** Removes a member. Returns whether the group contained it. */
    private boolean remove(List<Member> candidates, String key, long rank) {
        Row orderKey = OrderKey.of(rank, key);
        if (!members.containsKey(orderKey)) return false;
        members.removeKey(orderKey);
        candidates.removeIf(each -> each.key().equals(key));
        return true;
    }

    /** Adds a member. The candidates are the first members of the group before and after this call. */
    private void add(List<Member> candidates, long size, Member member) {
        members.updateValue(OrderKey.of(member.rank(), member.key()), member.stored());
        boolean holdsAll = candidates.size() == size;
        if (!holdsAll && (candidates.isEmpty() || member.compareTo(candidates.get(candidates.size() - 1)) > 0)) return;
        candidates.add(member);
        Collections.sort(candidates);
        if (candidates.size() > n + SPARE_CANDIDATES) candidates.remove(candidates.size() - 1);
    }

    /**
     * Reads the first members from the sorted state, and those that only their full key can order. If the entries are not
     * sorted, reads all of them, so that the result is right with any layout of the state.
     */
    private List<Member> firstMembers() {
        int wanted = n + SPARE_CANDIDATES;
        List<Member> found = new ArrayList<>();
        boolean isSorted = true;
        Row last = null;
        for (Iterator<Tuple2<Row, Row>> entries = members.iterator(); entries.hasNext(); ) {
            Tuple2<Row, Row> entry = entries.next();
            isSorted = isSorted && (last == null || OrderKey.compare(last, entry._1()) <= 0);
            if (isSorted && found.size() >= wanted && !OrderKey.areEqualUpToPrefix(last, entry._1())) break;
            found.add(Member.of(entry._2()));
            last = entry._1();
        }
        Collections.sort(found);
        return found.size() > wanted ? new ArrayList<>(found.subList(0, wanted)) : found;
    }
}
