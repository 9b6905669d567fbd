package cometmq.engine;

import java.io.RandomAccessFile;
import java.lang.reflect.Method;
import java.net.URL;
import java.net.URLClassLoader;
import java.nio.MappedByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.Path;
import java.util.List;

/**
 * Two class loaders bring two copies of the library, whose handlers of lost pages find each other on top. A fault in a
 * page that is no copy's stays an exception, also after the copies' class loaders are gone. Arguments: the jar, a store,
 * a new file.
 */
public final class TwoCopies {
    private TwoCopies() {}

    public static void main(String[] args) throws Exception {
        openByTurns(args[0], args[1]);
        faultOutside(args[2] + ".1");
        System.gc();
        faultOutside(args[2] + ".2");
        System.out.println("passed");
    }

    /** Each opening puts its copy's handler on top. */
    private static void openByTurns(String jar, String store) throws Exception {
        URL[] path = {Path.of(jar).toUri().toURL()};
        ClassLoader parent = ClassLoader.getPlatformClassLoader();
        try (URLClassLoader one = new URLClassLoader(path, parent); URLClassLoader other = new URLClassLoader(path, parent)) {
            for (ClassLoader loader : List.of(one, other, one, other)) {
                Class<?> kind = loader.loadClass("cometmq.engine.Store");
                Method open = kind.getMethod("open", String.class, java.util.Collection.class);
                ((AutoCloseable) open.invoke(null, store, List.of())).close();
            }
        }
    }

    private static void faultOutside(String name) throws Exception {
        try (RandomAccessFile file = new RandomAccessFile(name, "rw")) {
            file.setLength(1 << 16);
            MappedByteBuffer mapped = file.getChannel().map(FileChannel.MapMode.READ_ONLY, 0, 1 << 16);
            file.setLength(0);
            mapped.get(1 << 15);
            throw new AssertionError("a page of a cut file was read");
        } catch (InternalError expected) {
            System.out.println(expected.getMessage());
        }
    }
}
