package kafkasse.records;

import java.io.IOException;
import java.io.StringWriter;
import java.nio.ByteBuffer;
import java.util.UUID;
import org.apache.avro.Schema;
import org.apache.avro.generic.GenericDatumReader;
import org.apache.avro.io.DecoderFactory;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.RowFactory;
import org.apache.spark.sql.api.java.UDF2;

/**
 * Decodes Avro in Confluent's wire format to JSON text.
 *
 * <p>Input: the value of a record, and its header __value_schema_id or null. Output: the JSON text, and the problem of a value
 * that cannot be decoded. Both are null for a tombstone. A value is read with the schema with which it was written, and
 * converted to the schema of the pipeline as Avro defines it: with default values, aliases and wider types.
 */
public final class AvroToJson implements UDF2<byte[], byte[], Row> {
    private static final int ID_BYTES = 5, GUID_BYTES = 17;
    /** A value may have this many items more than bytes, because items such as null take up no bytes. */
    private static final int MAX_EMPTY_ITEMS = 1_000_000;

    static {
        // By default, a value of a few bytes can make Avro allocate 2 GiB, which ends the JVM.
        limit("bytes", 1 << 26);
        limit("string", 1 << 26);
        limit("collectionItems", 1_000_000);
    }

    private final SchemaRegistry registry;
    private final String schemaText;
    private transient Schema schema;

    /**
     * @param url the address of the schema registry
     * @param authorization the header Authorization of each request to the registry, or ""
     * @param authorities the certificates of the authorities to trust as PEM, or "" for those that the JVM trusts
     * @param schema the schema of the decoded values
     */
    public AvroToJson(String url, String authorization, String authorities, String schema) {
        registry = new SchemaRegistry(url, authorization, authorities);
        schemaText = schema;
    }

    @Override
    public Row call(byte[] value, byte[] header) throws InterruptedException {
        if (value == null) return RowFactory.create(null, null);
        try {
            return RowFactory.create(header == null ? decoded(value, value) : decoded(header, value), null);
        } catch (Undecodable error) {
            return RowFactory.create(null, error.getMessage());
        }
    }

    /** Decodes a value. The prefix with the ID of its schema is the start of the value, or a header. */
    private String decoded(byte[] prefix, byte[] value) throws Undecodable, InterruptedException {
        boolean isGuid = prefix.length >= GUID_BYTES && prefix[0] == 1;
        if (!isGuid && (prefix.length < ID_BYTES || prefix[0] != 0)) {
            throw new Undecodable("its value does not start with a schema ID");
        }
        ByteBuffer id = ByteBuffer.wrap(prefix, 1, prefix.length - 1);
        String path = isGuid ? "guids/" + new UUID(id.getLong(), id.getLong()) : "ids/" + Integer.toUnsignedString(id.getInt());
        int start = prefix == value ? id.position() : 0;
        Schema written = registry.schema(path);
        try {
            var reader = new GenericDatumReader<Object>(written, schema());
            var decoder = DecoderFactory.get().binaryDecoder(value, start, value.length - start, null);
            Object read = reader.read(null, new BoundedDecoder(decoder, (long) value.length + MAX_EMPTY_ITEMS));
            StringWriter text = new StringWriter();
            new JsonWriter(text).write(read, schema());
            return text.toString();
        } catch (IOException | RuntimeException | StackOverflowError error) { // Avro raises many types
            throw new Undecodable("its value is not Avro of the schema " + path + ": " + error.getClass().getSimpleName());
        }
    }

    private Schema schema() {
        if (schema == null) schema = new Schema.Parser().parse(schemaText);
        return schema;
    }

    private static void limit(String name, int maximum) {
        System.setProperty("org.apache.avro.limits." + name + ".maxLength", Integer.toString(maximum));
    }
}
