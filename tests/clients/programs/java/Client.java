import com.launchdarkly.eventsource.ConnectStrategy;
import com.launchdarkly.eventsource.ErrorStrategy;
import com.launchdarkly.eventsource.EventSource;
import com.launchdarkly.eventsource.FaultEvent;
import com.launchdarkly.eventsource.MessageEvent;
import com.launchdarkly.eventsource.StreamEvent;
import java.net.URI;

/** Reads a stream with okhttp-eventsource, and prints each event as one line of JSON. Argument: the URL. */
public class Client {
    public static void main(String[] args) {
        EventSource source =
                new EventSource.Builder(ConnectStrategy.http(URI.create(args[0])))
                        .errorStrategy(ErrorStrategy.alwaysContinue()) // Otherwise, a broken connection is an exception.
                        .build();
        for (StreamEvent event : source.anyEvents()) {
            if (event instanceof MessageEvent) {
                MessageEvent message = (MessageEvent) event;
                System.out.printf(
                        "{\"event\":%s,\"id\":%s,\"data\":%s}%n",
                        quoted(message.getEventName()), quoted(message.getLastEventId()), quoted(message.getData()));
                System.out.flush();
            } else if (event instanceof FaultEvent) {
                System.err.println("ended: " + ((FaultEvent) event).getCause());
            }
        }
    }

    /** Returns a JSON string. The data of the test contains no control characters except line breaks. */
    private static String quoted(String text) {
        return text == null ? "null" : '"' + text.replace("\\", "\\\\").replace("\"", "\\\"").replace("\n", "\\n") + '"';
    }
}
