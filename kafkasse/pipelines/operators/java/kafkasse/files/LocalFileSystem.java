package kafkasse.files;

/** {@link LocalFiles} with checksums, for {@code fs.file.impl}. */
public final class LocalFileSystem extends org.apache.hadoop.fs.LocalFileSystem {
    /** Hadoop calls this constructor. */
    public LocalFileSystem() {
        super(new LocalFiles());
    }
}
