package ewe;

import java.io.File;
import java.io.IOException;
import java.nio.file.Path;
import org.eclipse.jetty.server.Handler;

/** Prepares web applications for one generation of the Servlet API. */
public interface Deployer {
    /**
     * Return the handler of a web application, which is not started yet.
     *
     * @param directory of the application
     * @param context the beginning of its URLs
     * @param temporary a directory for its compiled pages and uploads
     */
    Handler prepare(Path directory, String context, File temporary) throws IOException;
}
