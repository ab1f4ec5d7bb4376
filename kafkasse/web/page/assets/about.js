// Puts this server's own addresses into the examples, as text.

for (const place of document.querySelectorAll("[data-address]")) {
  place.textContent = new URL(place.dataset.address, document.baseURI).href;
}
