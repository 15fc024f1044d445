package top

import (
	"context"
	"io"
	"slices"
	"strings"
	"time"
	"unicode"

	tea "charm.land/bubbletea/v2"
	"charm.land/lipgloss/v2"

	rdsd "github.com/rdsd/rdsd/sdk/go"
)

var emptyStatus = &rdsd.Status{}

// model is the program of the terminal. bubbletea's loop alone touches it.
type model struct {
	ctx         context.Context
	o           Options
	look        look
	now, before *Shot
	shown       arranged
	width       int
	height      int
	asking      bool // a goroutine of bubbletea asks the source
}

// shotMsg is what the source said.
type shotMsg struct {
	shot *Shot
	err  error
}

// tickMsg says that an interval is over.
type tickMsg struct{}

// frames a second, at most. The program wakes so often even if nothing has changed, on
// the processors of what it shows; a key is answered within 50 ms.
const frames = 20

// Run shows the daemon in a terminal until the user or ctx ends it.
func Run(ctx context.Context, in io.Reader, out io.Writer, env []string, o Options) error {
	m := &model{ctx: ctx, o: o, look: newLook(), width: 80, height: 24}
	if len(o.Views) > 0 {
		m.look.view = o.Views[0]
	}
	m.look.filter = o.Filter
	if c, ok := Column(m.look.view, o.Sort); ok {
		m.look.column[m.look.view], m.look.reversed[m.look.view] = c, o.Reverse
	}
	// Signals end ctx: whoever called has them.
	_, err := tea.NewProgram(m, tea.WithContext(ctx), tea.WithInput(in), tea.WithOutput(out), tea.WithEnvironment(env),
		tea.WithoutSignalHandler(), tea.WithFPS(frames)).Run()
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// Init implements tea.Model.
func (m *model) Init() tea.Cmd { return m.ask() }

// ask has the source asked, once at a time: a daemon that is slow is not asked more.
func (m *model) ask() tea.Cmd {
	if m.asking {
		return nil
	}
	m.asking = true
	return func() tea.Msg {
		shot, err := m.o.Source(m.ctx)
		return shotMsg{shot, err}
	}
}

func (m *model) tick() tea.Cmd {
	return tea.Tick(m.o.Interval, func(time.Time) tea.Msg { return tickMsg{} })
}

// Update implements tea.Model.
func (m *model) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		m.width, m.height = msg.Width, msg.Height
	case shotMsg:
		m.asking, m.look.err = false, msg.err
		if msg.err == nil && !m.look.paused {
			m.before, m.now = m.now, msg.shot
		}
		return m, m.tick()
	case tickMsg:
		if m.look.paused {
			return m, m.tick()
		}
		return m, m.ask()
	case tea.KeyPressMsg:
		return m, m.key(msg)
	}
	return m, nil
}

// key does what a key is for.
func (m *model) key(k tea.KeyPressMsg) tea.Cmd {
	l := &m.look
	name := k.String()
	if name == "ctrl+c" {
		return tea.Quit
	}
	if l.typing {
		m.typed(name, k.Text)
		return nil
	}
	switch name {
	case "q":
		return tea.Quit
	case "1", "2", "3", "4", "5":
		m.show(View(name[0] - '1'))
	case "tab", "right", "l":
		m.show((l.view + 1) % numViews)
	case "shift+tab", "left", "h":
		m.show((l.view + numViews - 1) % numViews)
	case "up", "k":
		m.move(-1)
	case "down", "j":
		m.move(1)
	case "pgup":
		m.move(-max(m.height-fixed, 1))
	case "pgdown":
		m.move(max(m.height-fixed, 1))
	case "home", "g":
		m.move(-1 << 30)
	case "end", "G":
		m.move(1 << 30)
	case ">", ".":
		m.sortBy(1)
	case "<", ",":
		m.sortBy(-1)
	case "r":
		l.reversed[l.view] = !l.reversed[l.view]
	case "/":
		l.typing, l.detail = true, false
	case "enter":
		m.move(0) // it stays with the thing, wherever that moves to
		l.detail = true
	case "esc", "backspace":
		if l.detail {
			l.detail = false
		} else {
			l.filter = ""
		}
	case "space", "p":
		l.paused = !l.paused
	}
	return nil
}

// show chooses a view.
func (m *model) show(v View) {
	m.look.view, m.look.row, m.look.detail, m.look.filter = v, "", false, ""
}

// typed takes a key of the filter.
func (m *model) typed(name, text string) {
	l := &m.look
	switch name {
	case "enter":
		l.typing = false
	case "esc":
		l.typing, l.filter = false, ""
	case "backspace":
		r := []rune(l.filter)
		l.filter = string(r[:max(len(r)-1, 0)])
	default:
		if len(l.filter) < 100 && !strings.ContainsFunc(text, unicode.IsControl) {
			l.filter += text
		}
	}
	l.row = ""
}

// move chooses another row.
func (m *model) move(by int) {
	_, at := screen(&m.shown, &m.look, m.now, m.before, m.width, m.height)
	if rows := m.shown.rows; len(rows) > 0 {
		m.look.row = rows[min(max(at+by, 0), len(rows)-1)].key
	}
}

// sortBy chooses another column; before the first one is the daemon's own order.
func (m *model) sortBy(by int) {
	l := &m.look
	n := len(Headings(l.view)) + 1
	l.column[l.view] = (l.column[l.view]+1+by+n)%n - 1
}

var styles = map[style]lipgloss.Style{
	title:   lipgloss.NewStyle().Bold(true),
	bad:     lipgloss.NewStyle().Bold(true).Foreground(lipgloss.Color("1")),
	heading: lipgloss.NewStyle().Reverse(true),
	chosen:  lipgloss.NewStyle().Bold(true).Underline(true),
	hint:    lipgloss.NewStyle().Faint(true),
}

// View implements tea.Model.
func (m *model) View() tea.View {
	lines, _ := screen(&m.shown, &m.look, m.now, m.before, m.width, m.height)
	out := make([]string, len(lines))
	for i, l := range lines {
		out[i] = l.text
		if s, ok := styles[l.style]; ok && l.text != "" {
			out[i] = s.Render(l.text)
		}
	}
	v := tea.NewView(strings.Join(out, "\n"))
	v.AltScreen = true
	v.WindowTitle = "rdsd top"
	return v
}

// ViewNamed finds a view by its name.
func ViewNamed(name string) (View, bool) {
	i := slices.Index(ViewNames, name)
	return View(i), i >= 0
}
