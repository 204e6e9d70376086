// Package images runs the images of a release in a real Docker daemon, on the servers of a development
// stack. It contains only tests.
//
// It needs bin/ (./task build), image files, root, and the programs of tools/need.sh host.
// ./task release:images-test provides them. With -short it runs no test.
package images
