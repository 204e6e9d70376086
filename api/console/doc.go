// Package console serves the operator console: pages that show and change what the admin API
// shows and changes. Each page calls the admin API in process, so that roles, the audit trail,
// limits and errors are the same for the console, the CLI and automation, and no page has
// data of its own. Pages are rendered on the server and work without a script.
//
// To add a page: add a Route to a function such as overviewRoutes in a file of its own, list
// that function in routes.go, and add a template with the block "main" to templates/. Start
// with Route, request and view.
package console
