// A row of tabs. Its half in the kernel is tab_bar.py: `titles` are shown, `chosen` is which one is open.
// Arrow keys, Home and End move along the row; Enter or Space opens, since opening a panel may load a model.

function render({ model, el: host }) {
  const root = el('div', { class: 'nbllm nbllm-tabbar', role: 'tablist', 'aria-label': 'panels', 'data-lm-suppress-shortcuts': 'true' });
  const tabs = [];
  host.append(root);

  function choose(index) {
    model.set('chosen', index);
    model.save_changes();
  }

  function mark() {
    const chosen = model.get('chosen');
    tabs.forEach((tab, index) => {
      tab.setAttribute('aria-selected', String(index === chosen));
      tab.tabIndex = index === chosen ? 0 : -1;
    });
    const places = host.closest('.nbllm-tabs')?.querySelector('.nbllm-tab-places');
    places?.setAttribute('role', 'tabpanel');
    places?.setAttribute('aria-label', model.get('titles')[chosen] ?? '');
  }

  function build() {
    tabs.splice(0, tabs.length, ...model.get('titles').map((title, index) =>
      el('button', { type: 'button', role: 'tab', onclick: () => choose(index) }, title)));
    root.replaceChildren(...tabs);
    mark();
  }

  root.addEventListener('keydown', (event) => {
    const at = tabs.indexOf(event.target);
    const to = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: tabs.length - 1 }[event.key];
    if (at < 0 || event.ctrlKey || event.metaKey || event.altKey) return;
    if (to !== undefined) {
      event.preventDefault();
      tabs[(to + tabs.length) % tabs.length].focus();
    }
    if (to !== undefined || event.key === 'Enter' || event.key === ' ') event.stopPropagation();
  });

  model.on('change:titles', build);
  model.on('change:chosen', mark);
  build();
  requestAnimationFrame(mark); // the place beside it may come onto the page later
  return () => {
    model.off('change:titles', build);
    model.off('change:chosen', mark);
  };
}

export default { render };
