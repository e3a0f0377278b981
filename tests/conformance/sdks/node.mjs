// Both majors of the npm package `openai`, as their users use them. A call is a line of JSON on standard input; what its
// caller saw is a line on standard output: texts and finish reasons by choice, usage, and the error that was raised.

import { createInterface } from 'node:readline';
import OpenAI7 from 'openai';
import OpenAI6 from 'openai-6';

const SDKS = { 'node 7': OpenAI7, 'node 6': OpenAI6 };
const CALLS = { streamed, collected, completions, whole };

function note(seen, answer) {
  for (const { index, delta, message, text, finish_reason } of answer.choices) {
    seen.texts[index] = (seen.texts[index] ?? '') + (text ?? (delta ?? message).content ?? '');
    if (finish_reason) seen.finished[index] = finish_reason;
  }
  if (answer.usage) seen.usage = [answer.usage.prompt_tokens, answer.usage.completion_tokens];
}

async function streamed(client, ask, seen) {
  for await (const chunk of await client.chat.completions.create({ ...ask, stream: true })) note(seen, chunk);
}

async function collected(client, ask, seen) {
  const runner = client.chat.completions.stream(ask).on('chunk', (chunk) => note(seen, chunk));
  await runner.finalChatCompletion();
}

async function completions(client, { messages, ...ask }, seen) {
  const stream = await client.completions.create({ ...ask, prompt: messages[0].content, stream: true });
  for await (const chunk of stream) note(seen, chunk);
}

async function whole(client, ask, seen) {
  const reply = await client.chat.completions.create(ask);
  note(seen, reply);
  seen.request_id = reply._request_id;
}

function raised(error) {
  const kinds = [];
  for (let kind = error.constructor; kind?.name && kind !== Error; kind = Object.getPrototypeOf(kind)) kinds.push(kind.name);
  const { message, status, code, type, param, requestID } = error;
  return { kinds, message, status, code, type, param, request_id: requestID };
}

// Of `fetch`: a gateway that stops lets a connection whose call has just ended be for a moment.
const CONNECTIONS = Symbol.for('undici.globalDispatcher.1');

async function closeConnections() {
  const used = globalThis[CONNECTIONS];
  globalThis[CONNECTIONS] = new used.constructor();
  await used.destroy();
}

for await (const line of createInterface({ input: process.stdin })) {
  const { sdk, way, url, key, retries, ask } = JSON.parse(line);
  const client = new SDKS[sdk]({ baseURL: url, apiKey: key, maxRetries: retries, timeout: 10_000 });
  const seen = { texts: [], finished: [] };
  try {
    await CALLS[way](client, ask, seen);
  } catch (error) {
    seen.error = raised(error);
  }
  await closeConnections();
  console.log(JSON.stringify(seen));
}
