package kafkasse.files;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.attribute.PosixFilePermission;
import java.util.EnumSet;
import java.util.Set;

import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RawLocalFileSystem;
import org.apache.hadoop.fs.permission.FsPermission;

/**
 * Accesses local files without starting a process for each file.
 *
 * <p>Without its native library, Hadoop runs {@code chmod} for each new file and {@code readlink} for each renamed file. A
 * commit of a pipeline creates and renames dozens of files.
 */
final class LocalFiles extends RawLocalFileSystem {
    private static final PosixFilePermission[] PERMISSIONS = PosixFilePermission.values(); // from the highest bit to the lowest

    @Override
    public void setPermission(Path path, FsPermission permission) throws IOException {
        int mode = permission.toShort();
        if (mode >> PERMISSIONS.length != 0) {
            super.setPermission(path, permission); // Java cannot set the sticky bit
            return;
        }
        Set<PosixFilePermission> permissions = EnumSet.noneOf(PosixFilePermission.class);
        for (PosixFilePermission each : PERMISSIONS) {
            if ((mode >> (PERMISSIONS.length - 1 - each.ordinal()) & 1) == 1) {
                permissions.add(each);
            }
        }
        Files.setPosixFilePermissions(pathToFile(path).toPath(), permissions);
    }

    @Override
    public FileStatus getFileLinkStatus(Path path) throws IOException {
        return Files.isSymbolicLink(pathToFile(path).toPath()) ? super.getFileLinkStatus(path) : getFileStatus(path);
    }
}
