import jakarta.servlet.annotation.MultipartConfig;
import jakarta.servlet.annotation.WebServlet;
import jakarta.servlet.http.HttpServlet;
import jakarta.servlet.http.HttpServletRequest;
import jakarta.servlet.http.HttpServletResponse;
import jakarta.servlet.http.HttpSession;
import java.io.PrintWriter;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.concurrent.CyclicBarrier;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.LockSupport;

/** Does what the path says. */
@WebServlet("/do/*")
@MultipartConfig
public class All extends HttpServlet {
    private static final CyclicBarrier THREE = new CyclicBarrier(3);

    @Override
    protected void service(HttpServletRequest request, HttpServletResponse response) {
        try {
            act(request, response);
        } catch (RuntimeException fault) {
            throw fault;
        } catch (Exception fault) {
            throw new IllegalStateException(fault);
        }
    }

    private void act(HttpServletRequest request, HttpServletResponse response) throws Exception {
        switch (request.getPathInfo()) {
            case "/echo" -> { // bytes
                response.setContentType("application/octet-stream");
                request.getInputStream().transferTo(response.getOutputStream());
            }
            case "/unread" -> response.sendError(413, "too much of it");
            case "/field" -> {
                response.setHeader("X-Set", request.getParameter("value"));
                response.addHeader("X-Add", request.getParameter("value"));
                response.sendRedirect("there" + request.getParameter("value"));
            }
            case "/boom" -> throw new IllegalArgumentException("the secret of boom");
            default -> {
                response.setContentType("text/plain; charset=utf-8");
                say(request, response.getWriter());
            }
        }
    }

    private void say(HttpServletRequest request, PrintWriter out) throws Exception {
        switch (request.getPathInfo()) {
            case "/count" -> {
                HttpSession session = request.getSession();
                Integer before = (Integer) session.getAttribute("count");
                session.setAttribute("count", before == null ? 1 : before + 1);
                out.print(session.getAttribute("count"));
            }
            case "/form" -> out.print(request.getParameter("name") + "|" + request.getParameter("town"));
            case "/part" -> out.print(request.getPart("file").getSubmittedFileName() + "|"
                    + request.getPart("file").getSize());
            case "/request" -> out.print(String.join("\n", request.getContextPath(), request.getServletPath(),
                    request.getRequestURI(), request.getQueryString(), request.getRemoteAddr(),
                    request.getHeader("X-Own"), request.getServerName(), String.valueOf(request.isSecure()),
                    request.getProtocol()));
            case "/endless" -> {
                while (!out.checkError()) {
                    out.println("more");
                    out.flush();
                    Thread.sleep(50);
                }
            }
            case "/log" -> {
                for (int i = 0; i < 1200; i++) {
                    System.err.println(request.getParameter("line"));
                }
            }
            case "/meet" -> { // all three at once, or none
                THREE.await(10, TimeUnit.SECONDS);
                out.print("met");
            }
            case "/spin" -> { // without end, though not at the cost of a processor
                while (!Thread.interrupted()) {
                    LockSupport.parkNanos(1_000_000);
                }
            }
            case "/who" -> out.print(Files.readString(Path.of("/proc/self/status")));
            case "/read" -> out.print(Files.readString(Path.of(request.getParameter("file"))));
            default -> out.print("what?");
        }
    }
}
