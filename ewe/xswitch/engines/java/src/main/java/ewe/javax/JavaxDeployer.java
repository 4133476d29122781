package ewe.javax;

import ewe.Deployer;
import java.io.File;
import java.io.IOException;
import java.io.InputStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import javax.servlet.RequestDispatcher;
import javax.servlet.http.HttpServletRequest;
import javax.servlet.http.HttpServletResponse;
import org.eclipse.jetty.ee8.nested.Request;
import org.eclipse.jetty.ee8.servlet.ErrorPageErrorHandler;
import org.eclipse.jetty.ee8.webapp.WebAppContext;
import org.eclipse.jetty.http.HttpCookie;
import org.eclipse.jetty.http.HttpStatus;
import org.eclipse.jetty.server.AllowedResourceAliasChecker;
import org.eclipse.jetty.server.Handler;

/** Prepares applications that use the packages javax.servlet: Servlet 4 and earlier. JavaxLoader loads this class. */
public final class JavaxDeployer implements Deployer {
    private final Path defaults;

    /** Write the defaults of jakarta applications with the names of this generation. */
    public JavaxDeployer() throws IOException {
        try (InputStream jakarta = JavaxDeployer.class.getResourceAsStream("/webdefault.xml")) {
            String text = new String(jakarta.readAllBytes(), StandardCharsets.UTF_8)
                    .replace("org.eclipse.jetty.ee10.", "org.eclipse.jetty.ee8.")
                    .replace("https://jakarta.ee/xml/ns/jakartaee\" version=\"6.0\"",
                            "http://xmlns.jcp.org/xml/ns/javaee\" version=\"4.0\"");
            defaults = Files.writeString(Files.createTempFile("webdefault-", ".xml"), text);
        }
    }

    @Override
    public Handler prepare(Path directory, String context, File temporary) {
        WebAppContext application = new WebAppContext();
        application.setContextPath(context);
        application.setWar(directory.toString());
        application.setDefaultsDescriptor(defaults.toString());
        application.setTempDirectory(temporary);
        application.setThrowUnavailableOnStartupException(true);
        application.setAliasChecks(List.of( // no link leads out
                new AllowedResourceAliasChecker(application.getCoreContextHandler())));
        application.setErrorHandler(new Errors());
        application.getSessionHandler().setHttpOnly(true);
        application.getSessionHandler().setSameSite(HttpCookie.SameSite.LAX);
        return application.get();
    }

    /** Error pages without the text of an exception: that is for the log. */
    private static final class Errors extends ErrorPageErrorHandler {
        Errors() {
            setShowStacks(false);
            setShowServlet(false);
        }

        @Override
        protected void generateAcceptableResponse(Request base, HttpServletRequest request,
                HttpServletResponse response, int code, String message) throws IOException {
            if (request.getAttribute(RequestDispatcher.ERROR_EXCEPTION) != null) {
                request.removeAttribute(RequestDispatcher.ERROR_EXCEPTION);
                message = HttpStatus.getMessage(code);
            }
            super.generateAcceptableResponse(base, request, response, code, message);
        }
    }
}
