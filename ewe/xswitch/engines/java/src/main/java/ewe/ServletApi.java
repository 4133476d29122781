package ewe;

import java.io.IOException;
import java.io.InputStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.jar.JarEntry;
import java.util.jar.JarInputStream;
import java.util.stream.Stream;

/**
 * Tells which generation of the Servlet API an application uses: javax (until version 4) or jakarta (since version 5).
 *
 * <p>Its own classes decide, then its libraries: the name of the package is in each class that uses it. If both names
 * occur, or none, the namespace of web.xml decides. An application without any of these is a jakarta application.
 */
final class ServletApi {
    private static final int MAX_DESCRIPTOR_BYTES = 65536; // of web.xml, in which its namespace must be

    private boolean javax;
    private boolean jakarta;

    static boolean isJavax(Path directory) throws IOException {
        Path inf = directory.resolve("WEB-INF");
        ServletApi api = new ServletApi();
        for (Path file : files(inf.resolve("classes"), ".class")) {
            api.note(Files.readAllBytes(file));
        }
        if (api.javax == api.jakarta) {
            for (Path file : files(inf.resolve("lib"), ".jar")) {
                api.noteJar(file);
            }
        }
        return api.javax == api.jakarta ? describesJavax(inf.resolve("web.xml")) : api.javax;
    }

    private static List<Path> files(Path directory, String end) throws IOException {
        if (!Files.isDirectory(directory)) {
            return List.of();
        }
        try (Stream<Path> found = Files.walk(directory.toRealPath())) {
            return found.filter(path -> path.toString().endsWith(end) && Files.isRegularFile(path)).toList();
        }
    }

    private void note(byte[] bytes) {
        String text = new String(bytes, StandardCharsets.ISO_8859_1);
        javax |= text.contains("javax/servlet/");
        jakarta |= text.contains("jakarta/servlet/");
    }

    private void noteJar(Path file) throws IOException {
        try (JarInputStream jar = new JarInputStream(Files.newInputStream(file), false)) {
            for (JarEntry entry = jar.getNextJarEntry(); entry != null; entry = jar.getNextJarEntry()) {
                if (javax && jakarta) {
                    return;
                }
                if (entry.getName().endsWith(".class")) {
                    note(jar.readAllBytes());
                }
            }
        }
    }

    private static boolean describesJavax(Path descriptor) throws IOException {
        if (!Files.isRegularFile(descriptor)) {
            return false;
        }
        try (InputStream file = Files.newInputStream(descriptor)) {
            String text = new String(file.readNBytes(MAX_DESCRIPTOR_BYTES), StandardCharsets.ISO_8859_1);
            return text.contains("://java.sun.com/") || text.contains("://xmlns.jcp.org/");
        }
    }
}
