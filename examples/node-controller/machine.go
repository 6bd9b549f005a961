package main

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/config"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

// machines is a folder with a file for each: its name is the Node's UID, and its machine holds a lock on it from before its
// first instruction to its end. So a machine is never started twice, and is found again by a controller that starts anew.
type machines string

func (m machines) file(uid types.UID) string { return filepath.Join(string(m), string(uid)) }

// lock is the open file of a machine that does not run; nil while it runs.
func (m machines) lock(uid types.UID, flags int) (*os.File, error) {
	file, err := os.OpenFile(m.file(uid), os.O_RDWR|flags, 0o600)
	if err != nil {
		return nil, err
	}
	if err = syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err == nil {
		return file, nil
	}
	file.Close()
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return nil, nil
	}
	return nil, err
}

func (m machines) exists(uid types.UID) bool {
	file, err := m.lock(uid, 0)
	if file != nil {
		file.Close()
	}
	return file == nil && !errors.Is(err, fs.ErrNotExist)
}

// start makes the machine of a Node; one that runs is left as it is.
func (m machines) start(node *corev1.Node, machine []byte) error {
	file, err := m.lock(node.UID, os.O_CREATE)
	if file == nil {
		return err
	}
	defer file.Close() // the process has the lock, too
	program, err := os.Executable()
	if err != nil {
		return err
	}
	process := exec.Command(program, "machine", node.Name, string(node.UID), string(machine))
	process.ExtraFiles = []*os.File{file}
	process.Stderr = os.Stderr
	process.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // it outlives the controller
	if err := process.Start(); err != nil {
		return err
	}
	go process.Wait()
	return nil
}

// stop ends a machine, and returns when it has ended.
func (m machines) stop(uid types.UID) error {
	for {
		file, err := m.lock(uid, os.O_CREATE)
		if err != nil {
			return err
		}
		if file != nil {
			file.Close()
			return os.Remove(m.file(uid))
		}
		text, _ := os.ReadFile(m.file(uid))
		if pid, err := strconv.Atoi(string(text)); err == nil {
			syscall.Kill(pid, syscall.SIGKILL)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func (m machines) list() (uids []types.UID) {
	files, _ := os.ReadDir(string(m))
	for _, file := range files {
		uids = append(uids, types.UID(file.Name()))
	}
	return uids
}

// runMachine is a machine: it does for its Node what a kubelet does that has no containers.
func runMachine(ctx context.Context, args []string) error {
	lock := os.NewFile(3, "lock")
	defer lock.Close() // and not before
	if _, err := lock.WriteString(strconv.Itoa(os.Getpid())); err != nil {
		return err
	}
	name, uid, machine := args[0], args[1], struct{ Capacity, Reserved corev1.ResourceList }{}
	if err := json.Unmarshal([]byte(args[2]), &machine); err != nil {
		return err
	}
	allocatable := machine.Capacity.DeepCopy()
	for resource, amount := range machine.Reserved {
		left := allocatable[resource]
		left.Sub(amount)
		allocatable[resource] = left
	}
	api, err := client.New(config.GetConfigOrDie(), client.Options{})
	if err != nil {
		return err
	}
	go func() { // heartbeats wait for no pod
		for ctx.Err() == nil {
			pause := 10 * time.Second
			if err := beat(ctx, api, name, uid, machine.Capacity, allocatable); err != nil {
				log.Log.Error(err, "no heartbeat", "node", name)
				pause = time.Second
			}
			time.Sleep(pause)
		}
	}()
	for ctx.Err() == nil {
		if err := runPods(ctx, api, name); err != nil {
			log.Log.Error(err, "pods are not looked after", "node", name)
		}
		time.Sleep(time.Second)
	}
	return nil
}

// beat renews the Lease of the Node and says that it is Ready (4.1).
func beat(ctx context.Context, api client.Client, name, uid string, capacity, allocatable corev1.ResourceList) error {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: corev1.NamespaceNodeLease, Name: name}}
	_, err := controllerutil.CreateOrUpdate(ctx, api, lease, func() error {
		lease.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: name, UID: types.UID(uid)}}
		lease.Spec.HolderIdentity, lease.Spec.LeaseDurationSeconds = &name, ptr.To(int32(40))
		lease.Spec.RenewTime = ptr.To(metav1.NowMicro())
		return nil
	})
	if err != nil {
		return err
	}
	if err := api.Get(ctx, client.ObjectKeyFromObject(node), node); err != nil {
		return err
	}
	changed := node.DeepCopy()
	changed.Status.Capacity, changed.Status.Allocatable = capacity, allocatable
	changed.Status.NodeInfo = corev1.NodeSystemInfo{
		KubeletVersion: "v1.36.0", MachineID: uid, SystemUUID: uid, BootID: uid, OperatingSystem: "linux", Architecture: runtime.GOARCH,
	}
	setCondition(changed, corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady",
		Message: "this machine is a process", LastHeartbeatTime: metav1.Now()})
	return api.Status().Patch(ctx, changed, client.StrategicMergeFrom(node))
}

// runPods says of the Node's pods that they run, and lets those go whose deletion was asked for.
func runPods(ctx context.Context, api client.Client, name string) error {
	var pods corev1.PodList
	if err := api.List(ctx, &pods, client.MatchingFields{"spec.nodeName": name}); err != nil {
		return err
	}
	for _, pod := range pods.Items {
		var err error
		switch {
		case pod.DeletionTimestamp != nil:
			err = api.Delete(ctx, &pod, client.GracePeriodSeconds(0))
		case pod.Status.Phase == corev1.PodPending:
			seen := pod.DeepCopy()
			pod.Status.Phase = corev1.PodRunning
			for _, kind := range []corev1.PodConditionType{corev1.PodInitialized, corev1.ContainersReady, corev1.PodReady} {
				pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{
					Type: kind, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now()})
			}
			err = api.Status().Patch(ctx, &pod, client.StrategicMergeFrom(seen))
		}
		if client.IgnoreNotFound(err) != nil {
			return err
		}
	}
	return nil
}
