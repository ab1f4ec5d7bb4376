package kafkasse;

import java.util.ArrayList;
import java.util.Collections;
import java.util.Comparator;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;
import org.apache.spark.sql.Encoders;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.RowFactory;
import org.apache.spark.sql.streaming.MapState;
import org.apache.spark.sql.streaming.OutputMode;
import org.apache.spark.sql.streaming.StatefulProcessor;
import org.apache.spark.sql.streaming.TTLConfig;
import org.apache.spark.sql.streaming.TimeMode;
import org.apache.spark.sql.streaming.TimerValues;
import org.apache.spark.sql.types.StructType;
import scala.collection.Iterator;
import scala.jdk.javaapi.CollectionConverters;

/**
 * Keeps the latest row of each key and emits the top n items of a group each time that they change.
 *
 * Input:  key string, group string (null removes the key), rank bigint, item struct.
 * Output: group string, items array, by descending rank and, for equal ranks, by key. Empty if the group has no keys.
 *
 * The checkpointed state contains one row per key and nothing else. `rankings` holds the same rows in order. It lives as
 * long as one batch, and is rebuilt from the state when the first row of a batch arrives.
 *
 * Spark's own compiler, Janino, compiles this class. Janino has no generics and no lambdas. See stateful_processor.py.
 */
public class TopN extends StatefulProcessor implements Comparator {
    private static final int KEY = 0, GROUP = 1, RANK = 2, ITEM = 3;

    private final StructType schema;
    private final int n;
    private transient MapState newest;
    private transient Map rankings;

    public TopN(StructType schema, int n) {
        this.schema = schema;
        this.n = n;
    }

    public void init(OutputMode outputMode, TimeMode timeMode) {
        newest = getHandle().getMapState("newest", Encoders.STRING(), Encoders.row(schema), TTLConfig.NONE());
    }

    public Iterator handleInputRows(Object all, Iterator rows, TimerValues timers) {
        if (rankings == null) restore();
        List changes = new ArrayList();
        while (rows.hasNext()) apply((Row) rows.next(), changes);
        return CollectionConverters.asScala(changes.iterator());
    }

    private void restore() {
        rankings = new HashMap();
        for (Iterator rows = newest.values(); rows.hasNext(); ) {
            Row row = (Row) rows.next();
            ranking(group(row)).add(row);
        }
    }

    private void apply(Row row, List changes) {
        Row old = (Row) newest.getValue(row.getString(KEY));
        String from = group(old), to = group(row);
        List fromTop = top(from), toTop = top(to);
        if (from != null) remove(old);
        if (to != null) add(row);
        if (from != null && !from.equals(to)) report(from, fromTop, changes);
        if (to != null) report(to, toTop, changes);
    }

    private void remove(Row row) {
        newest.removeKey(row.getString(KEY));
        TreeSet ranking = ranking(group(row));
        ranking.remove(row);
        if (ranking.isEmpty()) rankings.remove(group(row));
    }

    private void add(Row row) {
        newest.updateValue(row.getString(KEY), row);
        ranking(group(row)).add(row);
    }

    private void report(String group, List before, List changes) {
        List now = top(group);
        if (!now.equals(before)) changes.add(RowFactory.create(new Object[] {group, now.toArray()}));
    }

    private List top(String group) {
        if (!rankings.containsKey(group)) return Collections.EMPTY_LIST;
        List items = new ArrayList();
        for (java.util.Iterator rows = ranking(group).iterator(); rows.hasNext() && items.size() < n; ) {
            items.add(((Row) rows.next()).get(ITEM));
        }
        return items;
    }

    private TreeSet ranking(String group) {
        if (!rankings.containsKey(group)) rankings.put(group, new TreeSet(this));
        return (TreeSet) rankings.get(group);
    }

    private static String group(Row row) {
        return row == null ? null : row.getString(GROUP);
    }

    public int compare(Object one, Object other) {
        Row a = (Row) one, b = (Row) other;
        int larger = Long.compare(b.getLong(RANK), a.getLong(RANK));
        return larger != 0 ? larger : a.getString(KEY).compareTo(b.getString(KEY));
    }
}
