package kafkasse.records;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.RowFactory;
import org.apache.spark.sql.api.java.UDF8;
import scala.collection.Seq;
import scala.jdk.javaapi.CollectionConverters;

/**
 * Turns a bad record into a dead letter: its bytes, followed by headers that say why it is bad and where it is.
 *
 * <p>Input: key, value, headers or null, problem, topic, and as text partition, offset and timestamp in milliseconds. Output:
 * topic, key, value, headers and problem. The value, the key or the other headers are omitted if Kafka would reject the dead
 * letter. See contract.py.
 */
public final class DeadLetter
        implements UDF8<byte[], byte[], Seq<Row>, String, String, String, String, String, Row> {
    private static final int MAX_REASON_CHARACTERS = 1000;
    private static final List<String> SOURCE = List.of("topic", "partition", "offset", "timestamp");
    /** The size of a record and of its batch without their fields. */
    private static final int RECORD_OVERHEAD_BYTES = 128;
    /** The length of a key, a value, or the name or the value of a header. */
    private static final int FIELD_OVERHEAD_BYTES = 5;

    private final String letters;
    private final int maxBytes;

    /**
     * @param letters the topic for dead letters
     * @param maxBytes the size of its largest record
     */
    public DeadLetter(String letters, int maxBytes) {
        this.letters = letters;
        this.maxBytes = maxBytes;
    }

    @Override
    public Row call(
            byte[] key,
            byte[] value,
            Seq<Row> headers,
            String problem,
            String topic,
            String partition,
            String offset,
            String atMs) {
        List<Row> given = headers == null ? List.of() : CollectionConverters.asJava(headers);
        return of(key, value, given, problem, topic, partition, offset, atMs);
    }

    /** Returns the dead letter, with the problem and the SOURCE in its headers. */
    Row of(byte[] key, byte[] value, List<Row> given, String problem, String... source) {
        int characters = Math.min(MAX_REASON_CHARACTERS, problem.codePointCount(0, problem.length()));
        List<Row> own = new ArrayList<>();
        own.add(ownHeader("reason", problem.substring(0, problem.offsetByCodePoints(0, characters))));
        for (int i = 0; i < SOURCE.size(); i++) own.add(ownHeader(SOURCE.get(i), source[i]));
        own.add(ownHeader("omitted", null));
        List<Row> headers = new ArrayList<>(given);
        headers.addAll(own);
        if (bytes(key, value, headers) > maxBytes) {
            value = null;
            omit("value", headers);
        }
        if (bytes(key, value, headers) > maxBytes) {
            key = null;
            omit("key", headers);
        }
        if (bytes(key, value, headers) > maxBytes) {
            headers = own;
            omit("headers", headers);
        }
        return RowFactory.create(letters, key, value, headers.toArray(), problem);
    }

    private static void omit(String part, List<Row> headers) {
        headers.set(headers.size() - 1, ownHeader("omitted", part));
    }

    private static Row ownHeader(String name, String value) {
        return header("kafkasse-dead-letter-" + name, value);
    }

    static Row header(String name, String value) {
        return RowFactory.create(name, value == null ? null : value.getBytes(StandardCharsets.UTF_8));
    }

    /** Returns an upper bound of the size that a record has in Kafka, uncompressed. */
    static int bytes(byte[] key, byte[] value, List<Row> headers) {
        int bytes = RECORD_OVERHEAD_BYTES + 2 * FIELD_OVERHEAD_BYTES + length(key) + length(value);
        for (Row header : headers) {
            int name = header.isNullAt(0) ? 0 : header.getString(0).getBytes(StandardCharsets.UTF_8).length;
            bytes += 2 * FIELD_OVERHEAD_BYTES + name + length(header.getAs(1));
        }
        return bytes;
    }

    private static int length(byte[] value) {
        return value == null ? 0 : value.length;
    }
}
