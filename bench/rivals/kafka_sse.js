// A baseline: KafkaSSE with Node's HTTP server. Arguments: the folder with node_modules, and the brokers.
'use strict';

const [modules, brokers] = process.argv.slice(2);
const kafkaSse = require(`${modules}/node_modules/kafka-sse`);
const quiet = { child: () => quiet };
for (const level of ['trace', 'debug', 'info', 'warn', 'error', 'fatal']) quiet[level] = () => {};

const server = require('http').createServer((request, response) => {
    const topics = request.url.slice(1).split(',');
    kafkaSse(request, response, topics, { kafkaConfig: { 'metadata.broker.list': brokers }, logger: quiet });
});
server.listen(0, '127.0.0.1', () => console.log(`Listening at: http://127.0.0.1:${server.address().port}`));
