package kafkasse.files;

import java.io.IOException;
import java.net.URI;
import java.net.URISyntaxException;

import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.ChecksumFs;
import org.apache.hadoop.fs.DelegateToFileSystem;
import org.apache.hadoop.fs.FsConstants;

/** {@link LocalFiles} with checksums, for {@code fs.AbstractFileSystem.file.impl}, which checkpoints use. */
public final class LocalFs extends ChecksumFs {
    /** Hadoop calls this constructor. */
    public LocalFs(URI uri, Configuration settings) throws IOException, URISyntaxException {
        super(new Raw(settings));
    }

    private static final class Raw extends DelegateToFileSystem {
        Raw(Configuration settings) throws IOException, URISyntaxException {
            super(FsConstants.LOCAL_FS_URI, new LocalFiles(), settings, FsConstants.LOCAL_FS_URI.getScheme(), false);
        }

        @Override
        public boolean isValidName(String name) {
            return true; // the file system of the machine checks the names
        }
    }
}
