// A client of mqtt.js that comes to one of several nodes at random, each time that it connects.
//   node roaming.js CLIENT-ID PORT,PORT,...
// Reads commands from stdin and writes what happens to stdout, one JSON array a line:
//   ["subscribe", filter, qos]  ["publish", topic, payload, qos]  ["waiting"]  ["cut"]  ["end"]
//   ["connects"]  ["subscribed"]  ["message", topic, payload]  ["acknowledged"]
//   ["waiting", text]
const net = require("net");
const mqtt = require("mqtt");

const [clientId, ports] = [process.argv[2], process.argv[3].split(",").map(Number)];
const tell = (...event) => process.stdout.write(JSON.stringify(event) + "\n");
const toAnyNode = () => {
  const port = ports[Math.floor(Math.random() * ports.length)];
  tell("connects");
  return net.connect({host: "127.0.0.1", port, noDelay: true});
};
const client = new mqtt.MqttClient(toAnyNode, {
  clientId, protocolVersion: 5, clean: false, properties: {sessionExpiryInterval: 3600},
  keepalive: 8, reconnectPeriod: 50, connectTimeout: 5000, resubscribe: false,
  reconnectOnConnackError: true,  // else it gives up when one node can't let it in
});
client.on("error", () => {});  // it connects again
// What is published between CONNACK and the first message read back from its store mqtt.js sends at
// once, before what waits from the connection before; this one keeps the order [MQTT-4.6.0-6].
client.on("packetreceive", (packet) => {
  if (packet.cmd === "connack" && packet.reasonCode === 0) client._storeProcessing = true;
});
client.on("message", (topic, payload) => tell("message", topic, payload.toString()));
const fail = (error) => { console.error(String(error)); process.exit(1); };
// A command that waits while stored messages are sent again fails if the connection ends then: it
// was not sent, and the application gives it again. Of a PUBREL that is sent again, as its PUBCOMP
// was lost, the broker may know nothing any more, and says so: 0x92 (MQTT 5, 3.7.2.1).
const again = (command, args, done) => (error) => {
  if (!error || error.code === 0x92) tell(done);
  else if (error.code !== undefined) fail(error);
  else setImmediate(() => command(...args));
};
const subscribe = (filter, qos) =>
  client.subscribe(filter, {qos}, again(subscribe, [filter, qos], "subscribed"));
const publish = (topic, payload, qos) =>
  client.publish(topic, payload, {qos}, again(publish, [topic, payload, qos], "acknowledged"));
const commands = {
  subscribe,
  publish,
  waiting: () => tell("waiting", JSON.stringify({
    connected: client.connected, reconnecting: client.reconnecting, queued: client.queue.length,
    unanswered: Object.keys(client.outgoing).slice(0, 5), total: Object.keys(client.outgoing).length,
  })),
  cut: () => client.stream.destroy(),
  end: () => client.end(false, {}, () => process.exit(0)),
};
require("readline").createInterface({input: process.stdin}).on("line", (line) => {
  const [name, ...rest] = JSON.parse(line);
  commands[name](...rest);
}).on("close", () => process.exit(0));
