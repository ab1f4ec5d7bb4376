package kafkasse.records;

/** A record cannot be decoded, and never will be. The message is the reason in its dead letter. */
final class Undecodable extends Exception {
    Undecodable(String reason) {
        super(reason);
    }
}
