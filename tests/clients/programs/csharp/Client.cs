// Read a stream without a library, and print each event as one line of JSON. Argument: the URL.

using System;
using System.IO;
using System.Net.Http;
using System.Threading;
using System.Threading.Tasks;

static class Client
{
    // Heartbeats are more frequent, so a connection that is silent for a minute is dead.
    static readonly TimeSpan Silence = TimeSpan.FromMinutes(1);

    // The default timeout ends every stream after 100 seconds.
    static readonly HttpClient Http = new HttpClient { Timeout = Timeout.InfiniteTimeSpan };

    static string lastId = "";

    static void Main(string[] args)
    {
        Run(args[0]).Wait();
    }

    static async Task Run(string url)
    {
        var random = new Random();
        while (true)
        {
            try
            {
                await Read(url);
            }
            catch (Exception error) when (error is HttpRequestException || error is IOException || error is ObjectDisposedException)
            {
                Console.Error.WriteLine("ended: " + error.Message);
            }
            await Task.Delay(random.Next(1000, 2000));
        }
    }

    static async Task Read(string url)
    {
        var request = new HttpRequestMessage(HttpMethod.Get, url);
        request.Headers.Accept.ParseAdd("text/event-stream");
        if (lastId != "") request.Headers.TryAddWithoutValidation("Last-Event-ID", lastId);
        // ResponseHeadersRead: the default waits for the end of the response.
        using (var response = await Http.SendAsync(request, HttpCompletionOption.ResponseHeadersRead))
        using (var reader = new StreamReader(await response.EnsureSuccessStatusCode().Content.ReadAsStreamAsync()))
        using (var timer = new Timer(_ => response.Dispose()))
        {
            string type = "message", data = null, id = lastId;
            while (true)
            {
                timer.Change(Silence, Timeout.InfiniteTimeSpan);
                var line = await reader.ReadLineAsync();
                if (line == null) return;
                if (line.StartsWith("event: ")) type = line.Substring(7);
                if (line.StartsWith("data: ")) data = (data == null ? "" : data + "\n") + line.Substring(6);
                if (line.StartsWith("id: ")) id = line.Substring(4);
                if (line != "") continue;
                lastId = id; // Not earlier: the connection may break before the event is complete.
                if (data != null) Print(type, data);
                type = "message";
                data = null;
            }
        }
    }

    static void Print(string type, string data)
    {
        Console.WriteLine("{{\"event\":\"{0}\",\"id\":\"{1}\",\"data\":\"{2}\"}}", type, Quoted(lastId), Quoted(data));
    }

    static string Quoted(string text)
    {
        return text.Replace("\\", "\\\\").Replace("\"", "\\\"").Replace("\n", "\\n");
    }
}
