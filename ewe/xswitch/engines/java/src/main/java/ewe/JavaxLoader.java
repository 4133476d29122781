package ewe;

import java.io.IOException;
import java.net.URL;
import java.net.URLClassLoader;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Enumeration;
import java.util.List;
import java.util.stream.Stream;

/**
 * Loads the classes for javax applications: JavaxDeployer, and Jetty's module with its compiler of JSPs.
 *
 * <p>Both generations of that compiler have the same class names, with javax in one and jakarta in the other. This
 * loader therefore looks into its own jars first, and takes only the rest from the engine: Jetty's core, the log.
 */
final class JavaxLoader extends URLClassLoader {
    static {
        registerAsParallelCapable();
    }

    private JavaxLoader(URL[] jars) {
        super("javax", jars, JavaxLoader.class.getClassLoader());
    }

    /** Return a deployer of javax applications. */
    static Deployer deployer() throws IOException, ReflectiveOperationException {
        Path engine = Path.of(System.getProperty("java.class.path")).toAbsolutePath(); // engine.jar
        List<URL> jars = new ArrayList<>();
        try (Stream<Path> files = Files.list(engine.resolveSibling("javax"))) {
            for (Path jar : (Iterable<Path>) files.sorted()::iterator) {
                jars.add(jar.toUri().toURL());
            }
        }
        return (Deployer) new JavaxLoader(jars.toArray(URL[]::new))
                .loadClass("ewe.javax.JavaxDeployer").getConstructor().newInstance();
    }

    @Override
    protected Class<?> loadClass(String name, boolean resolve) throws ClassNotFoundException {
        synchronized (getClassLoadingLock(name)) {
            Class<?> loaded = findLoadedClass(name);
            if (loaded != null) {
                return loaded;
            }
            try {
                return findClass(name);
            } catch (ClassNotFoundException elsewhere) {
                return super.loadClass(name, resolve);
            }
        }
    }

    @Override
    public URL getResource(String name) {
        URL own = findResource(name);
        return own != null ? own : super.getResource(name);
    }

    @Override
    public Enumeration<URL> getResources(String name) throws IOException {
        Enumeration<URL> own = findResources(name);
        return own.hasMoreElements() ? own : super.getResources(name);
    }
}
