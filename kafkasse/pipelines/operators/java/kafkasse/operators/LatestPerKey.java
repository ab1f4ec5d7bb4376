package kafkasse.operators;

import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.Objects;
import org.apache.spark.sql.Encoders;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.RowFactory;
import org.apache.spark.sql.streaming.OutputMode;
import org.apache.spark.sql.streaming.StatefulProcessor;
import org.apache.spark.sql.streaming.TTLConfig;
import org.apache.spark.sql.streaming.TimeMode;
import org.apache.spark.sql.streaming.TimerValues;
import org.apache.spark.sql.streaming.ValueState;
import org.apache.spark.sql.types.StructType;
import scala.collection.Iterator;
import scala.jdk.javaapi.CollectionConverters;

/**
 * Keeps the latest row of each key. Emits the old row and the new one each time that they differ.
 *
 * <p>Input: key, order, version, position, row. Output: key, before, after, version, position, step. See schemas.py.
 */
public final class LatestPerKey extends StatefulProcessor<String, Row, Row> {
    private static final int ORDER = 1, VERSION = 2, POSITION = 3, ROW = 4;

    private final boolean keysMove;
    private final StructType stateSchema;
    private transient ValueState<Row> latest;

    /** With keysMove, the rows of a key are in several partitions, so the state also keeps the positions of removed keys. */
    public LatestPerKey(boolean keysMove, StructType stateSchema) {
        this.keysMove = keysMove;
        this.stateSchema = stateSchema;
    }

    @Override
    public void init(OutputMode outputMode, TimeMode timeMode) {
        latest = getHandle().getValueState("latest", Encoders.row(stateSchema), TTLConfig.NONE());
    }

    @Override
    public Iterator<Row> handleInputRows(String key, Iterator<Row> rows, TimerValues timers) {
        KeyState state = new KeyState(latest.get());
        List<Row> changes = new ArrayList<>();
        for (Row row : sorted(rows)) {
            String before = state.row;
            long versionBefore = state.version;
            if (state.apply(row) && !Objects.equals(before, state.row)) {
                changes.add(RowFactory.create(
                        key, before, state.row, state.version, state.position.offsets(), state.version - versionBefore));
            }
            // At once, so that the steps do not depend on where a micro-batch ends.
            if (!keysMove && state.canBeForgotten()) state = new KeyState(null);
        }
        if (state.position.partitions() > 0) latest.update(state.stored());
        else latest.clear();
        return CollectionConverters.asScala(changes.iterator());
    }

    private static List<Row> sorted(Iterator<Row> rows) {
        List<Row> sorted = new ArrayList<>();
        while (rows.hasNext()) sorted.add(rows.next());
        if (sorted.size() > 1) sorted.sort(Comparator.comparingLong(LatestPerKey::sequence));
        return sorted;
    }

    /** The order in which the source wrote the rows of a key. */
    private static long sequence(Row row) {
        return row.isNullAt(VERSION) ? Position.of(row.getMap(POSITION)).highestOffset() : row.getLong(VERSION);
    }

    /** The latest row of a key, and what it was computed from. */
    private static final class KeyState {
        private Long order;
        private long sequence = -1;
        private long version;
        private Position position = Position.empty();
        private String row;

        KeyState(Row stored) {
            if (stored == null) return;
            order = stored.isNullAt(0) ? null : stored.getLong(0);
            sequence = stored.getLong(1);
            version = stored.getLong(2);
            position = Position.ofStored(stored.getList(3));
            row = stored.getString(4);
        }

        Row stored() {
            return RowFactory.create(order, sequence, version, position.stored(), row);
        }

        /** Whether the key was removed, and no later row can depend on what it was computed from. */
        boolean canBeForgotten() {
            return row == null && order == null && position.partitions() <= 1;
        }

        /** Applies a row, unless it is a duplicate or older than the latest one. Returns whether it was applied. */
        boolean apply(Row next) {
            Position nextPosition = Position.of(next.getMap(POSITION));
            boolean counted = !next.isNullAt(VERSION);
            if (counted ? next.getLong(VERSION) <= version : position.contains(nextPosition)) return false;
            position.merge(nextPosition);
            version = counted ? next.getLong(VERSION) : position.version();
            Long nextOrder = next.isNullAt(ORDER) ? null : next.getLong(ORDER);
            long nextSequence = sequence(next);
            if (order != null && nextOrder != null) {
                int later = Long.compare(nextOrder, order);
                if (later < 0 || later == 0 && nextSequence < sequence) return false;
            }
            order = nextOrder;
            sequence = nextSequence;
            row = next.getString(ROW);
            return true;
        }
    }
}
