# Varnish as a CDN for finite reads. This file replaces /etc/varnish/default.vcl of Debian's package. See docs/cdn.md.
vcl 4.1;

backend kafkasse {
    .host = "127.0.0.1";
    .port = "6917";
    .first_byte_timeout = 60s;
    .between_bytes_timeout = 60s;
}

sub vcl_recv {
    if (req.url !~ "^/streams/") {
        return (synth(404));
    }
    set req.http.X-Forwarded-Host = req.http.Host;
    set req.http.X-Forwarded-Proto = "http";  # behind a TLS proxy: "https"
    set req.http.X-Forwarded-Prefix = "/streams";
    set req.url = regsub(req.url, "^/streams/", "/");
    # Streams have no end, so other requests must not wait for them. The name of a parameter may be percent-encoded.
    # Requests with a login must not wait for equal ones. The cookies of guards begin with __Host-, except those that a function
    # of your app reads: add their names, such as "(^|; )(__Host-|session=)".
    if (req.method != "GET" || req.http.Authorization || req.http.Cookie ~ "(^|; )__Host-"
        || req.url !~ "[?&]offset="
        || req.url ~ "[?&]offset=now(&|$)"  # a request that waited for another would have a later end of the log
        || req.url ~ "[?&]live=(?!long-poll(&|$))"
        || req.url ~ "[?&][^=&]*%") {
        return (pass);
    }
    # Of many equal requests, only one reaches the server. Cookies make no difference for public routes.
    return (hash);
}

sub vcl_backend_response {
    if (beresp.status >= 400) {  # not for two minutes: equal requests reach the server meanwhile
        set beresp.uncacheable = true;
        set beresp.ttl = 1s;
        return (deliver);
    }
}

sub vcl_backend_error {
    # Not for finite reads: a client that waits for the same URL may accept only JSON.
    if (bereq.uncacheable && bereq.http.Accept ~ "text/event-stream") {
        set beresp.status = 200;
        set beresp.http.Content-Type = "text/event-stream";
        set beresp.http.Cache-Control = "no-store";
        # Without these, pages of other origins do not reconnect. The response contains no data.
        set beresp.http.Access-Control-Allow-Origin = bereq.http.Origin;
        set beresp.http.Access-Control-Allow-Credentials = "true";
        synthetic({"retry: 3000

"});
        return (deliver);
    }
}
