// Prints the body that Vercel's AI SDK sends for a call with all of its settings; it is run where the packages are.

import { createOpenAICompatible } from '@ai-sdk/openai-compatible'
import { generateText, jsonSchema, tool } from 'ai'

const sent = []
const provider = createOpenAICompatible({
  name: 'pippin',
  baseURL: 'http://localhost/v1',
  supportsStructuredOutputs: true,
  fetch: async (_, init) => {
    sent.push(init.body)
    throw new Error('enough')
  },
})
const schema = jsonSchema({ type: 'object', properties: { a: { type: 'string' } } })
const picture = 'iVBORw0KGgo='
await generateText({
  model: provider.chatModel('m'),
  system: 'x',
  messages: [
    {
      role: 'user',
      content: [
        { type: 'text', text: 'x' },
        { type: 'file', data: picture, mediaType: 'image/png' },
      ],
    },
    {
      role: 'assistant',
      content: [
        { type: 'reasoning', text: 'x' },
        { type: 'text', text: 'x' },
        { type: 'tool-call', toolCallId: 'c', toolName: 'look', input: { a: 'x' } },
      ],
    },
    {
      role: 'tool',
      content: [
        { type: 'tool-result', toolCallId: 'c', toolName: 'look', output: { type: 'json', value: { a: 1 } } },
      ],
    },
  ],
  tools: { look: tool({ description: 'x', inputSchema: schema, strict: true }) },
  toolChoice: 'required',
  maxOutputTokens: 1,
  temperature: 0.5,
  topP: 0.5,
  topK: 1,
  presencePenalty: 0.5,
  frequencyPenalty: 0.5,
  stopSequences: ['x'],
  seed: 1,
  maxRetries: 0,
  providerOptions: { pippin: { user: 'x', reasoningEffort: 'low', textVerbosity: 'low' } },
}).catch((error) => sent.length || console.error(error))
console.log(sent[0])
