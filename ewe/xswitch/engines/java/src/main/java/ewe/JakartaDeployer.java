package ewe;

import jakarta.servlet.RequestDispatcher;
import jakarta.servlet.http.HttpServletRequest;
import jakarta.servlet.http.HttpServletResponse;
import java.io.File;
import java.io.IOException;
import java.nio.file.Path;
import java.util.List;
import org.eclipse.jetty.ee10.servlet.ErrorPageErrorHandler;
import org.eclipse.jetty.ee10.servlet.ServletContextRequest;
import org.eclipse.jetty.ee10.webapp.WebAppContext;
import org.eclipse.jetty.http.HttpCookie;
import org.eclipse.jetty.http.HttpStatus;
import org.eclipse.jetty.server.AllowedResourceAliasChecker;
import org.eclipse.jetty.server.Handler;

/** Prepares applications that use the packages jakarta.servlet: Servlet 5 and later. ewe.javax has the earlier ones. */
final class JakartaDeployer implements Deployer {
    @Override
    public Handler prepare(Path directory, String context, File temporary) {
        WebAppContext application = new WebAppContext();
        application.setContextPath(context);
        application.setWar(directory.toString());
        application.setDefaultsDescriptor(
                JakartaDeployer.class.getResource("/webdefault.xml").toString());
        application.setTempDirectory(temporary);
        application.setThrowUnavailableOnStartupException(true);
        application.setAliasChecks(List.of(new AllowedResourceAliasChecker(application))); // no link leads out
        application.setErrorHandler(new Errors());
        application.getServletHandler().setDecodeAmbiguousURIs(true); // see Engine
        application.getSessionHandler().setHttpOnly(true);
        application.getSessionHandler().setSameSite(HttpCookie.SameSite.LAX);
        return application;
    }

    /** Error pages without the text of an exception: that is for the log. */
    private static final class Errors extends ErrorPageErrorHandler {
        Errors() {
            setShowStacks(false);
            setShowServlet(false);
        }

        @Override
        protected void generateAcceptableResponse(ServletContextRequest base, HttpServletRequest request,
                HttpServletResponse response, int code, String message) throws IOException {
            if (request.getAttribute(RequestDispatcher.ERROR_EXCEPTION) != null) {
                request.removeAttribute(RequestDispatcher.ERROR_EXCEPTION);
                message = HttpStatus.getMessage(code);
            }
            super.generateAcceptableResponse(base, request, response, code, message);
        }
    }
}
