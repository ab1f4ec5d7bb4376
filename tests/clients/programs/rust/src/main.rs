//! Read a stream with reqwest-eventsource, and print each event as one line of JSON. Argument: the URL.

use std::time::Duration;

use futures::StreamExt;
use reqwest_eventsource::{Event, EventSource};
use serde_json::json;

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let url = std::env::args().nth(1).expect("the URL is missing");
    let mut last_id = String::new();
    loop {
        // The event source stops when the response is not a stream. A new one needs the last ID.
        let mut request = reqwest::Client::new().get(&url);
        if !last_id.is_empty() {
            request = request.header("Last-Event-ID", &last_id);
        }
        let mut source = EventSource::new(request).expect("the request is valid");
        while let Some(event) = source.next().await {
            match event {
                Ok(Event::Message(message)) => {
                    last_id = message.id.clone();
                    println!("{}", json!({"event": message.event, "id": message.id, "data": message.data}));
                }
                Ok(Event::Open) => {}
                Err(error) => eprintln!("ended: {error}"),
            }
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}
