// Read a stream with System.Net.ServerSentEvents, and print each event as one line of JSON. Argument: the URL.

using System.Net.ServerSentEvents;
using System.Text.Json;

using var http = new HttpClient { Timeout = Timeout.InfiniteTimeSpan }; // The default ends every stream after 100 seconds.
var lastId = "";
while (true)
{
    using var request = new HttpRequestMessage(HttpMethod.Get, args[0]);
    request.Headers.Accept.ParseAdd("text/event-stream");
    if (lastId != "") request.Headers.TryAddWithoutValidation("Last-Event-ID", lastId);
    try
    {
        // ResponseHeadersRead: the default waits for the end of the response.
        using var response = await http.SendAsync(request, HttpCompletionOption.ResponseHeadersRead);
        response.EnsureSuccessStatusCode();
        using var body = await response.Content.ReadAsStreamAsync();
        await foreach (var item in SseParser.Create(body).EnumerateAsync())
        {
            // EventId is the ID of this event; SseParser.LastEventId may already be that of an incomplete one.
            Console.WriteLine(JsonSerializer.Serialize(new { @event = item.EventType, id = item.EventId, data = item.Data }));
            lastId = item.EventId ?? lastId;
        }
    }
    catch (Exception error) when (error is HttpRequestException or IOException)
    {
        Console.Error.WriteLine($"ended: {error.Message}");
    }
    await Task.Delay(Random.Shared.Next(1000, 2000));
}
