// Package repair has the executors of the tasks that repair a node and test it afterwards:
// node.reboot, gpu.reset and node.verify. What they do to the machine are ports, which package agent
// connects.
package repair
