package kafkasse.records;

import com.fasterxml.jackson.core.JsonFactory;
import com.fasterxml.jackson.core.JsonGenerator;
import java.io.IOException;
import java.io.Writer;
import java.math.BigDecimal;
import java.math.BigInteger;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.time.DateTimeException;
import java.time.LocalDate;
import java.time.LocalDateTime;
import java.time.ZoneOffset;
import java.util.Collection;
import java.util.Map;
import java.util.UUID;
import org.apache.avro.Schema;
import org.apache.avro.generic.GenericData;
import org.apache.avro.generic.GenericFixed;
import org.apache.avro.generic.IndexedRecord;

/** Writes decoded Avro values as JSON text, in the same form as kafkasse/records/registry/avro.py. */
final class JsonWriter {
    private static final JsonFactory FACTORY = new JsonFactory();
    private static final long SECONDS_PER_DAY = 86_400;

    private final JsonGenerator out;

    JsonWriter(Writer text) throws IOException {
        out = FACTORY.createGenerator(text);
    }

    void write(Object value, Schema schema) throws IOException {
        writeValue(value, schema);
        out.close();
    }

    private void writeValue(Object value, Schema schema) throws IOException {
        switch (schema.getType()) {
            case NULL -> out.writeNull();
            case BOOLEAN -> out.writeBoolean((Boolean) value);
            case INT, LONG -> writeNumber(((Number) value).longValue(), logicalType(schema));
            case FLOAT, DOUBLE -> writeDouble(((Number) value).doubleValue());
            case STRING, ENUM -> out.writeString(value.toString());
            case BYTES -> writeBytes(bytes((ByteBuffer) value), schema);
            case FIXED -> writeBytes(((GenericFixed) value).bytes(), schema);
            case UNION -> writeValue(value, schema.getTypes().get(GenericData.get().resolveUnion(schema, value)));
            case ARRAY -> {
                out.writeStartArray();
                for (Object each : (Collection<?>) value) writeValue(each, schema.getElementType());
                out.writeEndArray();
            }
            case MAP -> {
                out.writeStartObject();
                for (Map.Entry<?, ?> each : ((Map<?, ?>) value).entrySet()) {
                    out.writeFieldName(each.getKey().toString());
                    writeValue(each.getValue(), schema.getValueType());
                }
                out.writeEndObject();
            }
            case RECORD -> {
                out.writeStartObject();
                for (Schema.Field field : schema.getFields()) {
                    out.writeFieldName(field.name());
                    writeValue(((IndexedRecord) value).get(field.pos()), field.schema());
                }
                out.writeEndObject();
            }
        }
    }

    private static String logicalType(Schema schema) {
        String name = schema.getProp("logicalType");
        return name == null ? "" : name;
    }

    /** JSON has no numbers for NaN and infinity. */
    private void writeDouble(double value) throws IOException {
        if (Double.isFinite(value)) out.writeNumber(value);
        else out.writeString(Double.toString(value));
    }

    /** Writes a number. A time that ISO 8601 cannot express is written as its number. */
    private void writeNumber(long value, String logicalType) throws IOException {
        String text = switch (logicalType) {
            case "date" -> date(value);
            case "time-millis" -> time(value, 3);
            case "time-micros" -> time(value, 6);
            case "timestamp-millis" -> timestamp(value, 3, "Z");
            case "timestamp-micros" -> timestamp(value, 6, "Z");
            case "timestamp-nanos" -> timestamp(value, 9, "Z");
            case "local-timestamp-millis" -> timestamp(value, 3, "");
            case "local-timestamp-micros" -> timestamp(value, 6, "");
            case "local-timestamp-nanos" -> timestamp(value, 9, "");
            default -> null;
        };
        if (text == null) out.writeNumber(value);
        else out.writeString(text);
    }

    private static String date(long days) {
        try {
            LocalDate date = LocalDate.ofEpochDay(days);
            return date.getYear() < 1 || date.getYear() > 9999 ? null : date.toString();
        } catch (DateTimeException error) {
            return null;
        }
    }

    private static String time(long value, int digits) {
        long seconds = Math.floorDiv(value, power(digits));
        if (seconds < 0 || seconds >= SECONDS_PER_DAY) return null;
        return clock(seconds) + fraction(value, digits);
    }

    private static String timestamp(long value, int digits, String suffix) {
        long seconds = Math.floorDiv(value, power(digits));
        try {
            LocalDateTime time = LocalDateTime.ofEpochSecond(seconds, 0, ZoneOffset.UTC);
            if (time.getYear() < 1 || time.getYear() > 9999) return null;
            return time.toLocalDate() + "T" + clock(time.toLocalTime().toSecondOfDay()) + fraction(value, digits) + suffix;
        } catch (DateTimeException error) {
            return null;
        }
    }

    private static String clock(long seconds) {
        return String.format("%02d:%02d:%02d", seconds / 3600, seconds / 60 % 60, seconds % 60);
    }

    private static String fraction(long value, int digits) {
        return String.format(".%0" + digits + "d", Math.floorMod(value, power(digits)));
    }

    private static long power(int digits) {
        return (long) Math.pow(10, digits);
    }

    private void writeBytes(byte[] value, Schema schema) throws IOException {
        boolean isFixed = schema.getType() == Schema.Type.FIXED;
        String type = logicalType(schema);
        if (type.equals("decimal")) {
            int scale = schema.getObjectProp("scale") instanceof Number number ? number.intValue() : 0;
            out.writeString(new BigDecimal(value.length == 0 ? BigInteger.ZERO : new BigInteger(value), scale).toPlainString());
        } else if (isFixed && type.equals("uuid")) {
            ByteBuffer bits = ByteBuffer.wrap(value);
            out.writeString(new UUID(bits.getLong(), bits.getLong()).toString());
        } else if (isFixed && type.equals("duration")) {
            out.writeString(duration(ByteBuffer.wrap(value).order(ByteOrder.LITTLE_ENDIAN)));
        } else {
            out.writeBinary(value);
        }
    }

    private static String duration(ByteBuffer value) {
        long months = Integer.toUnsignedLong(value.getInt()), days = Integer.toUnsignedLong(value.getInt());
        long milliseconds = Integer.toUnsignedLong(value.getInt());
        return String.format("P%dM%dDT%d.%03dS", months, days, milliseconds / 1000, milliseconds % 1000);
    }

    private static byte[] bytes(ByteBuffer value) {
        byte[] found = new byte[value.remaining()];
        value.duplicate().get(found);
        return found;
    }
}
