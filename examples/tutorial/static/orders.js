import { Stream } from "./stream.js";

const list = document.querySelector("#orders");
const state = document.querySelector("#state");

const stream = new Stream(new URL("/streams/orders", location).href, {
  message: (data) => show(JSON.parse(data)),
  state: ({ name, reason }) => {
    state.dataset.name = name;
    state.textContent = {
      connecting: "Connecting…",
      live: "Live",
      reconnecting: `Reconnecting… ${reason}`,
      stopped: `${reason} Reload the page to try again.`,
    }[name];
  },
});
stream.restart();

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
