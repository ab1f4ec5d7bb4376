package kafkasse.records;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.RowFactory;
import org.apache.spark.sql.api.java.UDF6;
import scala.collection.Seq;
import scala.jdk.javaapi.CollectionConverters;

/**
 * Turns a row of a query into the record that Spark writes: the result, or a dead letter if Kafka would reject the result.
 *
 * <p>Input: topic, key, value, the headers of the query or null, version and source position as text or null. Output: topic,
 * key, value, headers, and the problem of a rejected result. See contract.py.
 *
 * <p>Why this is one function: Spark plans a query again after each commit, and generates its code again, while records wait.
 * As SQL expressions, this function took more of that time than the rest of a Top 3.
 */
public final class SinkRecord implements UDF6<String, byte[], byte[], Seq<Row>, String, String, Row> {
    private static final String NO_KEY = "it has no key";

    private final byte[] pipeline;
    private final Map<String, Integer> maxBytes;
    private final int minMaxBytes;
    private final DeadLetter deadLetter;

    /**
     * @param pipeline the name and the version of the pipeline
     * @param deadLetters the topic for rejected results
     * @param maxBytes the size of the largest record that Kafka accepts, for each topic
     */
    public SinkRecord(String pipeline, String deadLetters, Map<String, Integer> maxBytes) {
        this.pipeline = pipeline.getBytes(StandardCharsets.UTF_8);
        this.maxBytes = maxBytes;
        minMaxBytes = Collections.min(maxBytes.values());
        deadLetter = new DeadLetter(deadLetters, maxBytes.get(deadLetters));
    }

    @Override
    public Row call(String topic, byte[] key, byte[] value, Seq<Row> given, String version, String source) {
        List<Row> headers = new ArrayList<>();
        if (given != null) headers.addAll(CollectionConverters.asJava(given));
        headers.add(RowFactory.create("kafkasse-pipeline", pipeline));
        if (version != null) headers.add(DeadLetter.header("kafkasse-version", version));
        if (source != null) headers.add(DeadLetter.header("kafkasse-source", source));
        int bytes = DeadLetter.bytes(key, value, headers), max = maxBytes.getOrDefault(topic, minMaxBytes);
        if (key != null && bytes <= max) return RowFactory.create(topic, key, value, headers.toArray(), null);
        String problem = key == null ? NO_KEY : "it has about " + bytes + " bytes, but Kafka accepts " + max;
        return deadLetter.of(key, value, headers, problem, topic, null, null, null);
    }
}
