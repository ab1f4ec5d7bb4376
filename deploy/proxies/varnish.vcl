# Varnish in front of kafkasse. This file replaces /etc/varnish/default.vcl of Debian's package. See docs/proxies.md.
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
    return (pass);
}

sub vcl_backend_error {
    if (bereq.http.Accept ~ "text/event-stream") {
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
