// The search takes options as they are typed: for lunr a leading hyphen means "without this word", so the query
// of "--shots" would be an error. The search runs in a worker; its queries are messages of type 2.
const post = Worker.prototype.postMessage;
Worker.prototype.postMessage = function (message, ...rest) {
  if (message?.type === 2 && typeof message.data === "string")
    message = { ...message, data: message.data.replace(/(^|\s)-+(?=\w)/g, "$1") };
  return post.call(this, message, ...rest);
};
