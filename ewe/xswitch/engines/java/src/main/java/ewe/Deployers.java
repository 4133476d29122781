package ewe;

import java.io.IOException;
import java.nio.file.Path;

/** The deployers of both generations of the Servlet API. A JVM loads the classes of the older one when it needs them. */
final class Deployers {
    private final Deployer jakarta = new JakartaDeployer();
    private Deployer javax;

    /** Return the deployer for an application. */
    Deployer of(Path directory) throws IOException, ReflectiveOperationException {
        return ServletApi.isJavax(directory) ? javax() : jakarta;
    }

    private synchronized Deployer javax() throws IOException, ReflectiveOperationException {
        if (javax == null) {
            javax = JavaxLoader.deployer();
        }
        return javax;
    }
}
