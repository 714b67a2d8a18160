// Texts put aside beside the one that is sampled, each with what differs in its settings.

class Pins {
  constructor({ alternatives, restore, remove }) {
    this.alternatives = alternatives;
    this.restore = restore;
    this.remove = remove;
    this.root = el('div', { class: 'nbllm-pins' });
    this.all = [];
  }

  get count() {
    return this.all.length;
  }

  set(pins, buffers, colour) {
    this.alternatives.hide();
    this.all = pins.map((pin, i) => this.column(pin, readTokens(pin, buffers[i]), i + 1, colour));
    this.root.replaceChildren(...this.all.map((one) => one.root));
  }

  column(pin, tokens, number, colour) {
    const name = `pinned text ${number}`;
    const text = new TokenText({
      label: name,
      point: (place, node, how) => this.alternatives.point(text, place, node, how, null),
      leave: () => this.alternatives.leave(),
    });
    text.prompt(pin.prompt);
    text.colour = colour;
    text.append(tokens);
    const caption = el('div', { class: 'nbllm-label' });
    const use = el('button', { type: 'button', 'aria-label': `use the settings of ${name}`, onclick: () => this.restore(pin) }, 'Use these settings');
    const drop = el('button', { type: 'button', 'aria-label': `remove ${name}`, onclick: () => this.remove(pin) }, 'Remove');
    const root = el('section', { class: 'nbllm-pin', 'aria-label': name }, caption, text.root, el('div', { class: 'nbllm-actions' }, use, drop));
    return { pin, text, caption, root };
  }

  paint(colour) {
    for (const { text } of this.all) text.paint(colour);
  }

  // Says how each differs from what is shown: its settings, its model, and from which token on its text.
  compare({ prompt, tokens, settings, model }) {
    for (const { pin, text, caption } of this.all) {
      const differs = differences(pin.settings, settings);
      if (pin.model !== model) differs.push(pin.model);
      const shared = sharedTokens(text.tokens, tokens);
      const all = shared === text.tokens.length && shared === tokens.length;
      const same = pin.prompt !== prompt ? 'another prompt' : all ? 'the same text' : shared ? `the same for ${tokensText(shared)}` : 'different from the start';
      sayFacts(caption, [`pinned: ${differs.join(', ') || 'the same settings'}`, same]);
    }
  }
}
