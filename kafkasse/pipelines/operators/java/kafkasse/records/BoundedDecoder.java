package kafkasse.records;

import java.io.IOException;
import java.nio.ByteBuffer;
import org.apache.avro.SystemLimitException;
import org.apache.avro.io.Decoder;
import org.apache.avro.util.Utf8;

/**
 * Limits the items in all arrays and maps of a record.
 *
 * <p>Items of a type such as null take up no bytes, so a value of a few bytes can claim 2^63 items. Avro limits the items of an
 * array that it reads, but neither the items of an array that it skips nor the total of nested arrays.
 */
final class BoundedDecoder extends Decoder {
    private final Decoder in;
    private long itemsLeft;

    /** @param maxItems how many items all arrays and maps may have together */
    BoundedDecoder(Decoder in, long maxItems) {
        this.in = in;
        itemsLeft = maxItems;
    }

    private long counted(long items) {
        if (items < 0 || items > itemsLeft) throw new SystemLimitException("too many items");
        itemsLeft -= items;
        return items;
    }

    @Override
    public long readArrayStart() throws IOException {
        return counted(in.readArrayStart());
    }

    @Override
    public long arrayNext() throws IOException {
        return counted(in.arrayNext());
    }

    @Override
    public long skipArray() throws IOException {
        return counted(in.skipArray());
    }

    @Override
    public long readMapStart() throws IOException {
        return counted(in.readMapStart());
    }

    @Override
    public long mapNext() throws IOException {
        return counted(in.mapNext());
    }

    @Override
    public long skipMap() throws IOException {
        return counted(in.skipMap());
    }

    @Override
    public void readNull() throws IOException {
        in.readNull();
    }

    @Override
    public boolean readBoolean() throws IOException {
        return in.readBoolean();
    }

    @Override
    public int readInt() throws IOException {
        return in.readInt();
    }

    @Override
    public long readLong() throws IOException {
        return in.readLong();
    }

    @Override
    public float readFloat() throws IOException {
        return in.readFloat();
    }

    @Override
    public double readDouble() throws IOException {
        return in.readDouble();
    }

    @Override
    public Utf8 readString(Utf8 old) throws IOException {
        return in.readString(old);
    }

    @Override
    public String readString() throws IOException {
        return in.readString();
    }

    @Override
    public void skipString() throws IOException {
        in.skipString();
    }

    @Override
    public ByteBuffer readBytes(ByteBuffer old) throws IOException {
        return in.readBytes(old);
    }

    @Override
    public void skipBytes() throws IOException {
        in.skipBytes();
    }

    @Override
    public void readFixed(byte[] bytes, int start, int length) throws IOException {
        in.readFixed(bytes, start, length);
    }

    @Override
    public void skipFixed(int length) throws IOException {
        in.skipFixed(length);
    }

    @Override
    public int readEnum() throws IOException {
        return in.readEnum();
    }

    @Override
    public int readIndex() throws IOException {
        return in.readIndex();
    }
}
