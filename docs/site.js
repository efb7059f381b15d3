// The search takes options as they are typed: for lunr a leading hyphen means "without this word", so the query
// of "--shots" would be an error. The search runs in a worker; its queries are messages of type 2.
const post = Worker.prototype.postMessage;
Worker.prototype.postMessage = function (message, ...rest) {
  if (message?.type === 2 && typeof message.data === "string")
    message = { ...message, data: message.data.replace(/(^|\s)-+(?=\w)/g, "$1") };
  return post.call(this, message, ...rest);
};

// A line never breaks inside an option, such as --out.
for (const code of document.querySelectorAll(".md-typeset code")) {
  const walker = document.createTreeWalker(code, NodeFilter.SHOW_TEXT), texts = [];
  while (walker.nextNode()) texts.push(walker.currentNode);
  for (const text of texts) {
    const parts = text.data.split(/(--?[a-z][\w.-]*)/);
    text.replaceWith(...parts.map((part, index) => {
      if (index % 2 === 0) return part;
      const option = document.createElement("span");
      option.className = "option";
      option.textContent = part;
      return option;
    }));
  }
}
