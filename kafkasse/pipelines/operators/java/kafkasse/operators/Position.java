package kafkasse.operators;

import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.RowFactory;
import scala.jdk.javaapi.CollectionConverters;

/** The highest offset of each source partition that a result was computed from. */
final class Position {
    private final Map<Integer, Long> offsets;

    private Position(Map<Integer, Long> offsets) {
        this.offsets = offsets;
    }

    static Position empty() {
        return new Position(new TreeMap<>());
    }

    static Position of(scala.collection.Map<Integer, Long> offsets) {
        return new Position(new TreeMap<>(CollectionConverters.asJava(offsets)));
    }

    scala.collection.Map<Integer, Long> offsets() {
        return CollectionConverters.asScala(new TreeMap<>(offsets));
    }

    static Position ofStored(List<Row> stored) {
        Position position = empty();
        for (Row each : stored) position.offsets.put(each.getInt(0), each.getLong(1));
        return position;
    }

    Object[] stored() {
        return offsets.entrySet().stream().map(each -> RowFactory.create(each.getKey(), each.getValue())).toArray();
    }

    void merge(Position other) {
        other.offsets.forEach((partition, offset) -> offsets.merge(partition, offset, Math::max));
    }

    boolean contains(Position other) {
        return other.offsets.entrySet().stream().allMatch(each -> offsets.getOrDefault(each.getKey(), -1L) >= each.getValue());
    }

    int partitions() {
        return offsets.size();
    }

    /** How many records lie before this position. It increases with each record, in whichever order partitions are read. */
    long version() {
        return offsets.values().stream().mapToLong(offset -> offset + 1).sum();
    }

    long highestOffset() {
        return offsets.values().stream().mapToLong(offset -> offset).max().orElse(-1);
    }
}
