package kafkasse.operators;

import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.RowFactory;

/** A member of a group. Members sort by descending rank, and for equal ranks by the UTF-8 bytes of their keys. */
record Member(String key, long rank, String item) implements Comparable<Member> {
    static Member of(Row stored) {
        return new Member(stored.getString(0), stored.getLong(1), stored.getString(2));
    }

    Row stored() {
        return RowFactory.create(key, rank, item);
    }

    @Override
    public int compareTo(Member other) {
        int larger = Long.compare(other.rank, rank);
        return larger != 0 ? larger : Arrays.compareUnsigned(bytes(), other.bytes());
    }

    private byte[] bytes() {
        return key.getBytes(StandardCharsets.UTF_8);
    }
}
