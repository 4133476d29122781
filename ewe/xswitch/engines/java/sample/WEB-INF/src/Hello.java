import jakarta.servlet.annotation.WebServlet;
import jakarta.servlet.http.HttpServlet;
import jakarta.servlet.http.HttpServletRequest;
import jakarta.servlet.http.HttpServletResponse;
import jakarta.servlet.http.HttpSession;
import java.io.IOException;

/** Counts the visits of each visitor. */
@WebServlet("/hello")
public class Hello extends HttpServlet {
    @Override
    protected void doGet(HttpServletRequest request, HttpServletResponse response) throws IOException {
        HttpSession session = request.getSession();
        Integer before = (Integer) session.getAttribute("visits");
        int visits = before == null ? 1 : before + 1;
        session.setAttribute("visits", visits);
        response.setContentType("text/plain; charset=utf-8");
        response.getWriter().println("Hello, visit " + visits);
    }
}
