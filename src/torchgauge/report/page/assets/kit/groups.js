// The module tree for pictures: equal blocks in a row become one block with all their children, and thousands of siblings
// become groups of neighbours, or each would be thinner than a pixel.
(() => {
  const EQUAL = 24; // equal blocks that are drawn as one: fewer are wide enough to read
  const MANY = 80;
  const GROUPS = 40;

  // Nodes are rows of the modules; numbers beyond them are groups.
  tg.groupedTree = (modules) => {
    const groups = []; // {parent, children}
    const inside = new Map(); // node -> the group it is in
    const split = new Map(); // row -> its groups

    const alike = (row) => ["type", "params", "macs"].map((key) => modules.get(row, key)).join(" ") + ` ${modules.children(row).length}`;

    // One block for many equal ones: its members are those of all of them at its place.
    function merge(parent, members) {
      const id = modules.length + groups.push({ parent, members, isEqual: true }) - 1;
      for (const member of members) inside.set(member, id);
      return id;
    }

    function merged(parent, nodes) {
      const found = [];
      for (let from = 0, to; from < nodes.length; from = to) {
        for (to = from + 1; to < nodes.length && alike(nodes[to]) === alike(nodes[from]);) to += 1;
        if (to - from < EQUAL) found.push(...nodes.slice(from, to));
        else found.push(merge(parent, nodes.slice(from, to)));
      }
      return found;
    }

    function mergedChildren(id) {
      const group = groupOf(id);
      if (!group.children) {
        const lists = group.members.map((row) => modules.children(row));
        const isSame = lists.every((list) => list.length === lists[0].length);
        group.children = isSame ? lists[0].map((_, place) => merge(id, lists.map((list) => list[place]))) : [];
      }
      return group.children;
    }

    function divide(parent, nodes) {
      const blocks = nodes.length < EQUAL || nodes.some((node) => node >= modules.length) ? nodes : merged(parent, nodes);
      if (blocks.length <= MANY) return blocks;
      const count = Math.min(GROUPS, Math.ceil(nodes.length / GROUPS));
      const size = Math.ceil(nodes.length / count);
      const made = [];
      for (let from = 0; from < nodes.length; from += size) {
        const group = { parent };
        const id = modules.length + groups.push(group) - 1;
        group.members = nodes.slice(from, from + size);
        group.children = group.members.length > MANY ? divide(id, group.members) : group.members;
        for (const child of group.children) inside.set(child, id);
        made.push(id);
      }
      return made;
    }

    for (let row = 0; row < modules.length; row += 1) {
      const children = modules.children(row);
      if (children.length >= EQUAL) split.set(row, divide(row, children));
    }

    const isGroup = (node) => node >= modules.length;
    const groupOf = (node) => groups[node - modules.length];
    const children = (node) => {
      if (!isGroup(node)) return split.get(node) ?? modules.children(node);
      return groupOf(node).isEqual ? mergedChildren(node) : groupOf(node).children;
    };
    const sums = new Map();

    function sum(node, key) {
      const place = `${node} ${key}`;
      if (!sums.has(place)) sums.set(place, groupOf(node).members.reduce((total, row) => total + (modules.get(row, key) ?? 0), 0));
      return sums.get(place);
    }

    function name(node) {
      if (!isGroup(node)) return modules.get(node, "name");
      const { members, isEqual } = groupOf(node);
      if (isEqual) {
        const [first, last] = [members[0], members[members.length - 1]].map((row) => modules.get(row, "name"));
        return `${first === last ? first : `${first}–${last}`} ×${members.length}`;
      }
      return `${modules.get(members[0], "name")} … ${modules.get(members[members.length - 1], "name")}`;
    }

    return {
      isGroup,
      children,
      name,
      parent: (node) => (isGroup(node) ? groupOf(node).parent : inside.get(node) ?? modules.get(node, "parent")),
      value: (node, key) => (isGroup(node) ? sum(node, key) : modules.get(node, key) ?? 0),
      type: (node) => {
        if (!isGroup(node)) return modules.get(node, "type");
        const { members, isEqual } = groupOf(node);
        return isEqual ? modules.get(members[0], "type") : `${members.length} modules`;
      },
      path: (node) => (isGroup(node) ? null : modules.get(node, "path")),
    };
  };
})();
