package kafkasse.records;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.Serializable;
import java.net.HttpURLConnection;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.security.GeneralSecurityException;
import java.security.KeyStore;
import java.security.cert.Certificate;
import java.security.cert.CertificateException;
import java.security.cert.CertificateFactory;
import java.util.LinkedHashMap;
import java.util.Map;
import javax.net.ssl.HttpsURLConnection;
import javax.net.ssl.SSLContext;
import javax.net.ssl.SSLException;
import javax.net.ssl.SSLSocketFactory;
import javax.net.ssl.TrustManagerFactory;
import org.apache.avro.AvroRuntimeException;
import org.apache.avro.Schema;

/**
 * Reads the schemas with which records were written from a schema registry. All tasks of a JVM share the schemas.
 *
 * <p>If the registry does not respond, or responds with 429 or 5xx, a task retries for half a minute and then fails. The
 * pipeline then restarts. If the registry rejects the request, the pipeline ends. failures.py parses both messages.
 */
final class SchemaRegistry implements Serializable {
    private static final int ATTEMPTS = 6, FIRST_BACKOFF_MS = 1000, TIMEOUT_MS = 10_000;
    private static final int MAX_SCHEMAS = 500, MAX_RESPONSE_BYTES = 1 << 20;
    /** How long an unknown ID is cached. Another server of the registry may know it later. */
    private static final long UNKNOWN_FOR_NS = 30_000_000_000L;
    private static final Map<String, Found> FOUND = new LinkedHashMap<>(16, 0.75f, true) {
        @Override
        protected boolean removeEldestEntry(Map.Entry<String, Found> eldest) {
            return size() > MAX_SCHEMAS;
        }
    };

    private final String url;
    private final String authorization;
    private final String authorities;
    private transient SSLSocketFactory sockets;

    /**
     * @param url the address of the registry
     * @param authorization the header Authorization of each request, or ""
     * @param authorities the certificates of the authorities to trust as PEM, or "" for those that the JVM trusts
     */
    SchemaRegistry(String url, String authorization, String authorities) {
        this.url = url;
        this.authorization = authorization;
        this.authorities = authorities;
    }

    /**
     * Returns a schema.
     *
     * @param path `ids/5`, or `guids/` and a GUID
     * @throws Undecodable the registry has no such schema, or it is not Avro
     */
    Schema schema(String path) throws Undecodable, InterruptedException {
        String address = url.replaceAll("/+$", "") + "/schemas/" + path;
        synchronized (FOUND) { // one task reads a schema for all
            Found found = FOUND.get(address);
            if (found == null || found.schema == null && System.nanoTime() - found.atNs > UNKNOWN_FOR_NS) {
                found = read(address, path);
                FOUND.put(address, found);
            }
            if (found.schema == null) throw new Undecodable(found.problem);
            return found.schema;
        }
    }

    private Found read(String address, String path) throws InterruptedException {
        IOException problem = null;
        for (int attempt = 0; attempt < ATTEMPTS; attempt++) {
            if (attempt > 0) Thread.sleep((long) FIRST_BACKOFF_MS << (attempt - 1));
            try {
                return request(address, path);
            } catch (IOException error) {
                problem = error;
            }
        }
        throw new IllegalStateException("the schema registry is not available: " + problem.getMessage());
    }

    private static int status(HttpURLConnection connection) throws IOException {
        try {
            return connection.getResponseCode();
        } catch (SSLException error) {
            for (Throwable cause = error.getCause(); cause != null; cause = cause.getCause()) {
                if (cause instanceof CertificateException) {
                    throw rejected("TLS failed: " + error.getMessage() + "; correct ca_file in the schema of the source");
                }
            }
            throw error;
        }
    }

    private SSLSocketFactory sockets() throws IOException {
        if (sockets == null) {
            try {
                KeyStore trusted = KeyStore.getInstance(KeyStore.getDefaultType());
                trusted.load(null, null);
                var certificates = new ByteArrayInputStream(authorities.getBytes(StandardCharsets.US_ASCII));
                for (Certificate each : CertificateFactory.getInstance("X.509").generateCertificates(certificates)) {
                    trusted.setCertificateEntry(Integer.toString(trusted.size()), each);
                }
                var trust = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
                trust.init(trusted);
                SSLContext context = SSLContext.getInstance("TLS");
                context.init(null, trust.getTrustManagers(), null);
                sockets = context.getSocketFactory();
            } catch (GeneralSecurityException error) {
                throw rejected("ca_file has no valid certificates: " + error.getMessage());
            }
        }
        return sockets;
    }

    private static IllegalStateException rejected(String reason) {
        return new IllegalStateException("the schema registry rejects requests: " + reason);
    }

    private Found request(String address, String path) throws IOException {
        HttpURLConnection connection = (HttpURLConnection) URI.create(address).toURL().openConnection();
        connection.setConnectTimeout(TIMEOUT_MS);
        connection.setReadTimeout(TIMEOUT_MS);
        // A redirect to another host must not receive the password, and a registry has no reason to redirect.
        connection.setInstanceFollowRedirects(false);
        connection.setRequestProperty("Accept", "application/vnd.schemaregistry.v1+json, application/json");
        if (!authorization.isEmpty()) connection.setRequestProperty("Authorization", authorization);
        if (connection instanceof HttpsURLConnection secure && !authorities.isEmpty()) secure.setSSLSocketFactory(sockets());
        int status = status(connection);
        if (status == 404) return new Found(null, "the registry has no schema " + path);
        if (status == 429 || status >= 500) throw new IOException("status " + status);
        if (status != 200) {
            String settings = status == 401 || status == 403 ? "username and password_file" : "registry";
            throw rejected("status " + status + "; correct " + settings + " in the schema of the source");
        }
        try (InputStream body = connection.getInputStream()) {
            return found(new ObjectMapper().readTree(body.readNBytes(MAX_RESPONSE_BYTES)), path);
        }
    }

    private static Found found(JsonNode response, String path) {
        if (response.hasNonNull("schemaType") && !response.get("schemaType").asText().equals("AVRO")) {
            return new Found(null, "the schema " + path + " is not of type AVRO");
        }
        try {
            return new Found(new Schema.Parser().parse(response.path("schema").asText()), null);
        } catch (AvroRuntimeException error) { // for example, it refers to another subject
            return new Found(null, "the schema " + path + " is not a complete Avro schema");
        }
    }

    /** A schema, or why there is none. */
    private static final class Found {
        private final Schema schema;
        private final String problem;
        private final long atNs = System.nanoTime();

        Found(Schema schema, String problem) {
            this.schema = schema;
            this.problem = problem;
        }
    }
}
