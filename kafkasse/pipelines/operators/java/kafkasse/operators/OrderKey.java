package kafkasse.operators;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.Arrays;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.RowFactory;

/**
 * The key under which a member is stored, so that the state store returns members in rank order.
 *
 * <p>RocksDB returns the entries of a group in the order of their bytes. Spark stores a struct of five bigints as 8 bytes for
 * nulls and 8 bytes for each number, in little-endian order. The numbers are chosen so that these bytes sort by descending rank,
 * then by the first 16 bytes of the key. A longer key is identified by this prefix and 128 bits of its SHA-256. Such keys are not
 * sorted beyond their prefix.
 */
public final class OrderKey {
    private static final int PREFIX_BYTES = 16;
    private static final int NUMBERS = 5;
    /** The bytes of the rank and of the prefix of the key. */
    private static final int SORTED_NUMBERS = 3;

    private OrderKey() {}

    public static Row of(long rank, String key) {
        byte[] text = key.getBytes(StandardCharsets.UTF_8);
        ByteBuffer stored = ByteBuffer.allocate(Long.BYTES * NUMBERS);
        stored.putLong(Long.MAX_VALUE - rank);
        stored.put(Arrays.copyOf(text, PREFIX_BYTES));
        if (text.length <= PREFIX_BYTES) {
            stored.putLong(text.length).putLong(0);
        } else {
            stored.put(sha256(text), 0, PREFIX_BYTES);
        }
        stored.flip().order(ByteOrder.LITTLE_ENDIAN);
        Object[] numbers = new Object[NUMBERS];
        for (int i = 0; i < NUMBERS; i++) numbers[i] = stored.getLong();
        return RowFactory.create(numbers);
    }

    /** Compares two keys as the state store does. */
    static int compare(Row one, Row other) {
        return compare(one, other, NUMBERS);
    }

    /** Whether the state store does not sort these two keys, because only the rest of the members' keys differs. */
    static boolean areEqualUpToPrefix(Row one, Row other) {
        return compare(one, other, SORTED_NUMBERS) == 0;
    }

    private static int compare(Row one, Row other, int numbers) {
        for (int i = 0; i < numbers; i++) {
            int order = Long.compareUnsigned(Long.reverseBytes(one.getLong(i)), Long.reverseBytes(other.getLong(i)));
            if (order != 0) return order;
        }
        return 0;
    }

    private static byte[] sha256(byte[] text) {
        try {
            return MessageDigest.getInstance("SHA-256").digest(text);
        } catch (NoSuchAlgorithmException error) {
            throw new IllegalStateException(error); // every Java has SHA-256
        }
    }
}
