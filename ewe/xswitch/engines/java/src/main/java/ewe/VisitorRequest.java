package ewe;

import java.net.InetSocketAddress;
import java.net.SocketAddress;
import org.eclipse.jetty.server.ConnectionMetaData;
import org.eclipse.jetty.server.Request;

/** A request as the visitor sent it to the web server, not as it came from there over the socket. */
final class VisitorRequest extends Request.Wrapper {
    VisitorRequest(Request request) {
        super(request);
    }

    @Override
    public boolean isSecure() {
        return "https".equals(getHttpURI().getScheme());
    }

    @Override
    public ConnectionMetaData getConnectionMetaData() {
        return new ConnectionMetaData.Wrapper(super.getConnectionMetaData()) {
            @Override
            public String getProtocol() { // not "fcgi/1.0", which means nothing to a servlet
                return getHttpVersion().asString();
            }

            @Override
            public SocketAddress getRemoteSocketAddress() {
                return address("REMOTE_ADDR", "REMOTE_PORT");
            }

            @Override
            public SocketAddress getLocalSocketAddress() {
                return address("SERVER_ADDR", "SERVER_PORT");
            }
        };
    }

    private InetSocketAddress address(String address, String port) {
        Object host = getAttribute(address);
        Object number = getAttribute(port);
        // Unresolved: do not look up a name.
        return host == null ? null : InetSocketAddress.createUnresolved(
                (String) host, number == null ? 0 : Integer.parseInt((String) number));
    }
}
