// Replace the URLs in the examples with the URLs of this server.

for (const example of document.querySelectorAll("[data-path]")) {
  example.textContent = new URL(example.dataset.path, document.baseURI).href;
}
