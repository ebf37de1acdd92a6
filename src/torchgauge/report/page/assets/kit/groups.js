// The module tree for pictures: thousands of siblings become groups of neighbours, or each would be thinner than a pixel.
(() => {
  const MANY = 80;
  const GROUPS = 40;

  // Nodes are rows of the modules; numbers beyond them are groups.
  tg.groupedTree = (modules) => {
    const groups = []; // {parent, children}
    const inside = new Map(); // node -> the group it is in
    const split = new Map(); // row -> its groups

    function divide(parent, nodes) {
      if (nodes.length <= MANY) return nodes;
      const count = Math.min(GROUPS, Math.ceil(nodes.length / GROUPS));
      const size = Math.ceil(nodes.length / count);
      const made = [];
      for (let from = 0; from < nodes.length; from += size) {
        const group = { parent };
        const id = modules.length + groups.push(group) - 1;
        group.members = nodes.slice(from, from + size);
        group.children = divide(id, group.members);
        for (const child of group.children) inside.set(child, id);
        made.push(id);
      }
      return made;
    }

    for (let row = 0; row < modules.length; row += 1) {
      const children = modules.children(row);
      if (children.length > MANY) split.set(row, divide(row, children));
    }

    const isGroup = (node) => node >= modules.length;
    const groupOf = (node) => groups[node - modules.length];
    const children = (node) => (isGroup(node) ? groupOf(node).children : split.get(node) ?? modules.children(node));
    const sums = new Map();

    function sum(node, key) {
      const place = `${node} ${key}`;
      if (!sums.has(place)) sums.set(place, groupOf(node).members.reduce((total, row) => total + (modules.get(row, key) ?? 0), 0));
      return sums.get(place);
    }

    function name(node) {
      if (!isGroup(node)) return modules.get(node, "name");
      const { members } = groupOf(node);
      return `${modules.get(members[0], "name")} … ${modules.get(members[members.length - 1], "name")}`;
    }

    return {
      isGroup,
      children,
      name,
      parent: (node) => (isGroup(node) ? groupOf(node).parent : inside.get(node) ?? modules.get(node, "parent")),
      value: (node, key) => (isGroup(node) ? sum(node, key) : modules.get(node, key) ?? 0),
      type: (node) => (isGroup(node) ? `${groupOf(node).members.length} modules` : modules.get(node, "type")),
      path: (node) => (isGroup(node) ? null : modules.get(node, "path")),
    };
  };
})();
