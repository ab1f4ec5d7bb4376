import { Stream } from "./kafkasse.js";

const list = document.querySelector("#orders");
const state = document.querySelector("#state");

const stream = new Stream(`/streams/orders/${encodeURIComponent(list.dataset.customer)}`, {
  onState: ({ state: name, reason }) => {
    state.dataset.name = name;
    state.textContent = {
      connecting: "Connecting…",
      open: "Live",
      retrying: `Reconnecting… ${reason}`,
      closed: "Stopped.",
    }[name];
  },
});
stream.run({ message: (event) => show(event.json()) }).catch(({ message }) => {
  state.textContent = `${message} Reload the page to try again.`;
});

/** Add an order, or show its new status. `textContent` does not interpret HTML in a value. */
function show({ id, item, status }) {
  const order = find(id) ?? add(id);
  order.querySelector("h2").textContent = item;
  order.querySelector(".number").textContent = `Order ${id}`;
  order.querySelector(".status").textContent = order.dataset.status = status;
  order.animate([{ backgroundColor: "var(--highlight)" }, {}], 1500);
}

function find(id) {
  return document.getElementById(`order-${id}`);
}

function add(id) {
  const order = document.createElement("li");
  order.id = `order-${id}`;
  order.className = "card";
  order.innerHTML = '<h2></h2><p class="number"></p><p class="status"></p>';
  list.append(order);
  return order;
}
