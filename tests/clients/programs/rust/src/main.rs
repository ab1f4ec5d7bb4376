//! Read a stream with one of the libraries below, and print each event as one line of JSON. Arguments: the library, the URL.

use std::time::Duration;

use eventsource_client::{Client, ClientBuilder, Error, ReconnectOptions, SSE};
use futures::StreamExt;
use launchdarkly_sdk_transport::HyperTransport;
use reqwest_eventsource::{Event, EventSource};
use serde_json::json;

const RETRY: Duration = Duration::from_secs(1);

fn print(event: &str, id: &str, data: &str) {
    println!("{}", json!({"event": event, "id": id, "data": data}));
}

async fn read_with_reqwest(url: &str) {
    let mut last_id = String::new();
    loop {
        // The event source stops when the response is not a stream. A new one needs the last ID.
        let mut request = reqwest::Client::new().get(url);
        if !last_id.is_empty() {
            request = request.header("Last-Event-ID", &last_id);
        }
        let mut source = EventSource::new(request).expect("the request is valid");
        while let Some(event) = source.next().await {
            match event {
                Ok(Event::Message(message)) => {
                    last_id = message.id.clone();
                    print(&message.event, &message.id, &message.data);
                }
                Ok(Event::Open) => {}
                Err(error) => eprintln!("ended: {error}"),
            }
        }
        tokio::time::sleep(RETRY).await;
    }
}

async fn read_with_eventsource_client(url: &str) {
    let options = ReconnectOptions::reconnect(true).retry_initial(true).delay(RETRY).backoff_factor(1).build();
    let transport = HyperTransport::builder().build_http().expect("the transport is valid");
    let client = ClientBuilder::for_url(url).expect("the URL is valid").reconnect(options).build_with_transport(transport);
    let mut stream = client.stream();
    // After an error, the next call reconnects with the last ID.
    while let Some(event) = stream.next().await {
        match event {
            Ok(SSE::Event(event)) => print(&event.event_type, event.id.as_deref().unwrap_or_default(), &event.data),
            Ok(_) => {}
            Err(Error::UnexpectedResponse(response, _)) => eprintln!("rejected: {}", response.status()),
            Err(error) => eprintln!("ended: {error}"),
        }
    }
    eprintln!("the source has stopped");
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    match arguments[1].as_str() {
        "reqwest-eventsource" => read_with_reqwest(&arguments[2]).await,
        "eventsource-client" => read_with_eventsource_client(&arguments[2]).await,
        other => panic!("unknown library: {other}"),
    }
}
