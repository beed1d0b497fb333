import java.io.IOException;
import java.net.StandardProtocolFamily;
import java.net.UnixDomainSocketAddress;
import java.nio.ByteBuffer;
import java.nio.channels.SocketChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.concurrent.Callable;

/**
 * Tells slackwater-wsengine when a thread enters and leaves the function that takes most of a request's time.
 *
 * <pre>{@code
 * static final HotFunction HOT = new HotFunction(Path.of("/run/slackwater-events/socket"));
 * Page page = HOT.call("search", () -> search(query));
 * }</pre>
 *
 * The socket is there only while the policy `hurry-up` runs. Without it the function is called and nothing else is done.
 * Nothing here waits: a line that cannot be sent at once is dropped. Java 16 or newer, platform threads.
 */
public final class HotFunction {
    private final Path socket;
    private SocketChannel channel;

    public HotFunction(Path socket) {
        this.socket = socket;
    }

    public <T> T call(String name, Callable<T> function) throws Exception {
        say("begin " + name);
        try {
            return function.call();
        } finally {
            say("end " + name);
        }
    }

    /** One connection for the process; the kernel's id of the thread goes with each line. */
    private synchronized void say(String line) {
        try {
            if (channel == null) {
                if (!Files.exists(socket)) {
                    return;
                }
                channel = SocketChannel.open(StandardProtocolFamily.UNIX);
                channel.connect(UnixDomainSocketAddress.of(socket));
                channel.configureBlocking(false);
            }
            Path thread = Files.readSymbolicLink(Path.of("/proc/thread-self")).getFileName();
            channel.write(ByteBuffer.wrap((line + " " + thread + "\n").getBytes(StandardCharsets.US_ASCII)));
        } catch (IOException error) {
            close();
        }
    }

    private void close() {
        try {
            if (channel != null) {
                channel.close();
            }
        } catch (IOException error) {
            // It is gone either way.
        }
        channel = null;
    }
}
